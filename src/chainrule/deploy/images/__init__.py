"""Images of components: build one from a folder, start one, and look after those that run.

plan_build, write_context    what an image will be, and the files it is built from; needs no engine
build_image                  build it with podman or docker, unless it is there already
start_container              run it on a free port of loopback
call_image, ask_image        have it answer one call
list_images                  images here that have a component
list_containers              containers that were started from them
container_log                what one has written
stop_container               stop and remove one

`Component.from_image` is the handle that most people want.
"""

from chainrule.deploy.images._build import BuiltImage, build_image
from chainrule.deploy.images._calls import ImageTransport, ask_image, call_image, open_image
from chainrule.deploy.images._container import (
    Container,
    ContainerFacts,
    container_log,
    list_containers,
    start_container,
    stop_container,
)
from chainrule.deploy.images._context import context_hash, write_context
from chainrule.deploy.images._engine import Engine, find_engine
from chainrule.deploy.images._image import ComponentImage, RunOptions, list_images
from chainrule.deploy.images._plan import BuildPlan, plan_build
from chainrule.deploy.images._recipes import apptainer_definition, containerfile
from chainrule.deploy.images._settings import Credential, ImageSettings, read_settings

__all__ = [
    "BuildPlan",
    "BuiltImage",
    "ComponentImage",
    "Container",
    "ContainerFacts",
    "Credential",
    "Engine",
    "ImageSettings",
    "ImageTransport",
    "RunOptions",
    "apptainer_definition",
    "ask_image",
    "build_image",
    "call_image",
    "container_log",
    "containerfile",
    "context_hash",
    "find_engine",
    "list_containers",
    "list_images",
    "open_image",
    "plan_build",
    "read_settings",
    "start_container",
    "stop_container",
    "write_context",
]
