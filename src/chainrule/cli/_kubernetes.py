"""`chainrule deploy kubernetes`: manifests for servers of an image."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

from chainrule._errors import InputError, StorageError
from chainrule.cli._output import write_result
from chainrule.deploy.images import plan_build
from chainrule.deploy.kubernetes import (
    KubernetesDeployment,
    manifests,
    pinned_image,
    to_yaml,
    write_folder,
)

# Title of a group of options → field of `KubernetesDeployment` → (metavar, help).
_OPTIONS = {
    "servers": {
        "name": ("NAME", "Name all objects so (default: the name of the image)"),
        "namespace": ("NAME", "Put all objects there (default: the namespace of the kubectl context)"),
        "replicas": ("N", "Run N servers (default: 1)"),
        "workers": ("N", "Run N worker processes in each server (default: 1)"),
        "cpu": ("QUANTITY", "Request this many CPUs for each server (default: one per worker)"),
        "memory": ("QUANTITY", "Give each server this much memory (default: 2Gi)"),
        "shared_memory": ("QUANTITY", "Size /dev/shm so; it counts as memory (default: 256Mi)"),
        "gpu": ("N", "Give each server N NVIDIA devices (default: 1 if the folder asks for one, else 0)"),
        "jobs": (
            "QUANTITY|postgresql",
            "Keep the jobs of one server on a volume of this size, or those of all servers in a database "
            "(default: jobs end with their server)",
        ),
        "jobs_secret": ("NAME", "Secret whose key `url` names that database (default: NAME-jobs)"),
        "storage_class": ("NAME", "Class of that volume (default: the cluster's)"),
        "grace_s": ("SECONDS", "Let calls go on this long when a server is stopped (default: 30)"),
        "startup_s": ("SECONDS", "Let loading the component take this long (default: 300)"),
    },
    "scaling": {
        "hpa": ("N", "Scale up to N servers by waiting calls, with a HorizontalPodAutoscaler"),
        "keda": ("N", "Scale up to N servers by waiting calls, with a ScaledObject of KEDA"),
        "prometheus": ("URL", "The Prometheus server that KEDA asks"),
    },
    "access": {
        "token_secret": ("NAME", "Secret whose key `token` callers send (default: NAME-token)"),
        "tls_secret": ("NAME", "Serve HTTPS with this Secret of type kubernetes.io/tls"),
        "pull_secret": ("NAME", "Secret for the registry of the image"),
        "ingress": ("HOST", "Offer the service under this host name"),
        "ingress_class": ("NAME", "Class of the Ingress (default: the cluster's)"),
        "ingress_tls": ("NAME", "Secret with the certificate of the host name"),
    },
}  # fmt: skip
_NUMBERS = ("replicas", "workers", "gpu", "hpa", "keda", "grace_s", "startup_s")


def add_arguments(parser: ArgumentParser) -> None:
    """The image, and how it is deployed."""
    parser.add_argument(
        "source",
        metavar="IMAGE|FOLDER",
        help="Reference of an image, or the component's folder, whose image has its name and version",
    )
    parser.add_argument(
        "--registry",
        metavar="PREFIX",
        help="Where the image of a FOLDER was pushed to, such as registry.example/team (default: none)",
    )
    parser.add_argument(
        "--allow-tag",
        action="store_true",
        help="Write the tag, which may move, and do not ask the registry for the digest",
    )
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE|FOLDER",
        help="Write one YAML file, or, where the name has no suffix, a folder with a kustomization.yaml "
        "(default: YAML on standard output)",
    )
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, (metavar, help) in options.items():
            kind = int if name in _NUMBERS else str
            group.add_argument(_flag(name), dest=name, type=kind, metavar=metavar, help=help)
        if title == "scaling":
            group.add_argument(
                "--scale-to-zero", action="store_true", help="Let KEDA stop the last server"
            )
        if title == "access":
            _add_repeated(group, "--allow-from", "NAMESPACE", "Let pods of this namespace call too")
            _add_repeated(
                group, "--allow-to", "NETWORK[:PORT]", "Let the component call this network"
            )
    running = parser.add_argument_group("the component")
    _add_repeated(running, "--env", "NAME=VALUE", "Set a variable")
    _add_repeated(
        running, "--serve", "ARGUMENT", "Pass chainrule serve this too: --serve=--access-log"
    )
    parser.set_defaults(handler=_run)


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _add_repeated(group: Any, flag: str, metavar: str, help: str) -> None:
    help = f"{help}; repeat for more (default: none)"
    group.add_argument(flag, action="append", default=[], metavar=metavar, help=help)


def _run(options: Namespace) -> int:
    objects = manifests(_deployment(options))
    output: Path | None = options.output
    if output is None:
        write_result(options, objects, to_yaml(objects))
        return 0
    if output.suffix:
        try:
            output.write_text(to_yaml(objects), encoding="utf-8")
        except OSError as error:
            raise StorageError(f"Cannot write {output}: {error.strerror}.") from error
        written = [output]
    else:
        written = write_folder(objects, output)
    write_result(options, {"written": [str(file) for file in written]}, f"{output}\n")
    return 0


def _deployment(options: Namespace) -> KubernetesDeployment:
    names = {field.name for field in fields(KubernetesDeployment)}
    given = {
        name: value
        for name, value in vars(options).items()
        if name in names and value is not None and value != []
    }
    given |= {name: tuple(given[name]) for name in ("allow_from", "allow_to") if name in given}
    given["env"] = dict(_variable(entry) for entry in options.env)
    reference, facts = _image(options)
    image = reference if options.allow_tag else pinned_image(reference)
    return KubernetesDeployment(
        **{**facts, **given, "image": image, "serve_arguments": tuple(options.serve)}
    )


def _image(options: Namespace) -> tuple[str, dict[str, Any]]:
    """The reference of the image, and what is known of the component."""
    if not Path(options.source).exists():
        name = options.source.partition("@")[0].rpartition("/")[2].partition(":")[0]
        return options.source, {"name": name.replace("_", "-").replace(".", "-")}
    settings = plan_build(options.source).settings
    tag = settings.version if settings.version != "unknown" else "latest"
    prefix = f"{options.registry.rstrip('/')}/" if options.registry else ""
    facts = {"name": settings.name.replace("_", "-").replace(".", "-"), "gpu": int(settings.gpu)}
    return f"{prefix}{settings.name}:{tag}", facts


def _variable(entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals:
        raise InputError(f"--env takes NAME=VALUE; found {entry!r}.", code="bad_option")
    return name, value
