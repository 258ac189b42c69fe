"""Images of components: build one from a folder, start it, list and stop the containers.

plan_build, write_context    what an image will be, and the files it is built from; needs no engine
build_image                  build it with podman or docker, unless it exists already
start_container              run it on a free port of loopback
call_image, ask_image        make one call in a container of its own
list_images                  the images on this machine that have a component
list_containers              the containers that were started from them
container_log                the output of a container
stop_container               stop and remove a container

`Component.from_image` gives a handle, which is enough for most uses.

Modules, in reading order:

    _settings       what `component.yaml` or `tesseract_config.yaml` says about the image
    _plan           what will be built: settings, packages, files and commands
    _recipes        the plan as a Containerfile and as an Apptainer definition
    _build          the folder that an image is built from, and the build
    _inside         the last step of a build, run inside the image: checks and bill of materials
    _engine         podman or docker
    _image          an image that exists, and what a container of it is given
    _container      running containers: start, wait, call, list, stop
    _watchdog       a small process that removes a container when its owner ends
"""

from chainrule.deploy.images._build import BuiltImage, build_image, context_hash, write_context
from chainrule.deploy.images._container import (
    Container,
    ContainerFacts,
    ImageTransport,
    ask_image,
    call_image,
    container_log,
    list_containers,
    open_image,
    start_container,
    stop_container,
)
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
