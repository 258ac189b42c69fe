"""`chainrule deploy slurm|kubernetes|alerts|grafana`: files for clusters and for monitoring."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from chainrule._errors import StorageError
from chainrule.cli._images import variables
from chainrule.cli._output import write_result, write_text
from chainrule.deploy.images import plan_build
from chainrule.deploy.kubernetes import (
    KubernetesDeployment,
    manifests,
    pinned_image,
    to_yaml,
    write_folder,
)
from chainrule.deploy.monitoring import alert_rules, dashboard
from chainrule.deploy.slurm import SlurmJob, batch_script

_SLURM_FIELDS = (
    "component", "image", "servers", "run", "name", "cpus", "memory", "gpus", "nodes", "time",
    "partition", "account", "python",
)  # fmt: skip


def add_slurm_arguments(parser: ArgumentParser) -> None:
    """The component, and what the job asks for."""
    parser.add_argument(
        "component",
        metavar="COMPONENT",
        nargs="?",
        help="File or folder of the component; with --image, its place in the image",
    )
    parser.add_argument(
        "--image", metavar="FILE.sif", help="Serve this Apptainer image (default: none)"
    )
    parser.add_argument("--servers", "-n", type=int, default=1, metavar="N", help="Start N servers")
    parser.add_argument(
        "--run",
        metavar="COMMAND",
        help="Run this when the servers are ready; the job ends with it (default: serve until stopped)",
    )
    parser.add_argument("--name", default="chainrule", help="Name of the job")
    parser.add_argument("--cpus", type=int, default=1, metavar="N", help="CPUs per server")
    parser.add_argument("--memory", help="Memory per node, such as 16G (default: the cluster's)")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs per server")
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="Spread the servers over N nodes (default: Slurm chooses)",
    )
    parser.add_argument(
        "--time", help="Time limit of the job, such as 02:00:00 (default: the cluster's)"
    )
    parser.add_argument("--partition", help="Partition of the job (default: the cluster's)")
    parser.add_argument("--account", help="Account that is charged (default: the user's)")
    parser.add_argument("--python", default="python", help="Python interpreter on the nodes")
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="Write the script to this file (default: standard output)",
    )
    parser.set_defaults(handler=_slurm)


def _slurm(options: Namespace) -> int:
    script = batch_script(SlurmJob(**{name: getattr(options, name) for name in _SLURM_FIELDS}))
    if options.output is None:
        write_result(options, {"script": script}, script)
    else:
        _write(options.output, script)
        write_result(options, {"written": str(options.output)}, f"{options.output}\n")
    return 0


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write {file}: {error.strerror}.") from error


# Title of a group of options → field of `KubernetesDeployment` → (metavar, help).
_KUBERNETES_OPTIONS = {
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
        "hpa": ("N", "Scale up to N servers by calls and jobs, with a HorizontalPodAutoscaler"),
        "keda": ("N", "Scale up to N servers by calls and jobs, with a ScaledObject of KEDA"),
        "prometheus": ("URL", "The Prometheus server that KEDA asks"),
    },
    "access": {
        "token_secret": ("NAME", "Secret whose key `token` callers send (default: NAME-token)"),
        "tls_secret": ("NAME", "Serve HTTPS with this Secret of type kubernetes.io/tls"),
        "pull_secret": ("NAME", "Secret for the registry of the image"),
        "env_secret": ("NAME", "Set a variable for each key of this Secret, such as the login of a bucket"),
        "ingress": ("HOST", "Offer the service under this host name"),
        "ingress_class": ("NAME", "Class of the Ingress (default: the cluster's)"),
        "ingress_tls": ("NAME", "Secret with the certificate of the host name"),
    },
}  # fmt: skip
_NUMBERS = ("replicas", "workers", "gpu", "hpa", "keda", "grace_s", "startup_s")


def add_kubernetes_arguments(parser: ArgumentParser) -> None:
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
    for title, options in _KUBERNETES_OPTIONS.items():
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
    parser.set_defaults(handler=_kubernetes)


def _flag(name: str) -> str:
    return f"--{name.removesuffix('_s').replace('_', '-')}"


def _add_repeated(group: Any, flag: str, metavar: str, help: str) -> None:
    help = f"{help}; repeat for more (default: none)"
    group.add_argument(flag, action="append", default=[], metavar=metavar, help=help)


def _kubernetes(options: Namespace) -> int:
    objects = manifests(_deployment(options))
    output: Path | None = options.output
    if output is None:
        write_result(options, objects, to_yaml(objects))
        return 0
    if output.suffix:
        _write(output, to_yaml(objects))
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
    given["env"] = variables("--env", options.env)
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


def add_alert_arguments(parser: ArgumentParser) -> None:
    """The job of Prometheus."""
    _add_job_name(parser)
    parser.set_defaults(handler=_alerts)


def add_grafana_arguments(parser: ArgumentParser) -> None:
    """The job of Prometheus."""
    _add_job_name(parser)
    parser.set_defaults(handler=_grafana)


def _add_job_name(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--job",
        default="chainrule",
        metavar="NAME",
        help="The job_name under which Prometheus scrapes the servers (default: chainrule)",
    )


def _alerts(options: Namespace) -> int:
    rules = alert_rules(options.job)
    write_text(
        json.dumps(rules, indent=2) + "\n"
        if options.json
        else yaml.safe_dump(rules, sort_keys=False, width=110, allow_unicode=True)
    )
    return 0


def _grafana(options: Namespace) -> int:
    write_text(json.dumps(dashboard(options.job), indent=2) + "\n")
    return 0
