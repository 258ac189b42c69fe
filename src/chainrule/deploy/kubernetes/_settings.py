"""What is deployed on Kubernetes, and how; everything that a cluster would refuse is refused here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from chainrule._errors import InputError

DATABASE = "postgresql"
"""What `jobs` is where all servers share a database."""

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,40}[a-z0-9])?")
_DNS_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_IMAGE = re.compile(r"[a-z0-9][\w.:/-]*(@sha256:[0-9a-f]{64})?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS: dict[str | None, float] = {
    None: 1,
    "m": 1e-3,
    "k": 1e3,
    **{unit: 1000.0**power for power, unit in enumerate("MGT", 2)},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGT", 1)},
}

# Options of `chainrule serve` that other parts of the objects depend on (probes, ports, mounts, autoscalers),
# and the options here that set them; `None` where there is none.
_SET_HERE = {
    "--host": None,
    "--port": None,
    "--output-path": None,
    "--token-file": "--token-secret",
    "--tls-certificate": "--tls-secret",
    "--tls-key": "--tls-secret",
    "--workers": "--workers",
    "--num-workers": "--workers",
    "--grace": "--grace",
    "--startup-timeout": "--startup",
    "--jobs": "--jobs",
    "--jobs-folder": "--jobs",
}


@dataclass(frozen=True, kw_only=True)
class KubernetesDeployment:
    """What is deployed, and how.

    Attributes:
        image: reference of the image, with its digest.
        name: name of all objects.
        namespace: namespace of all objects; that of the `kubectl` context when not given.
        replicas: number of servers; the least one with `hpa` or `keda`.
        workers: worker processes of each server.
        cpu: CPUs of each server, as a quantity; one per worker when not given.
        memory: memory of each server, as a quantity. Half of it may hold the bodies of calls.
        shared_memory: size of `/dev/shm`, as a quantity; it counts as memory.
        gpu: NVIDIA devices of each server.
        hpa: a HorizontalPodAutoscaler starts up to this many servers, by the calls that wait for a worker.
        keda: a ScaledObject of KEDA starts up to this many servers, by the same number.
        prometheus: URL of the Prometheus server that KEDA asks.
        scale_to_zero: whether KEDA may stop the last server.
        jobs: size of the volume that keeps the jobs of one server, or `postgresql` for jobs in a database
            that all servers share; jobs end with their server when not given.
        jobs_secret: Secret whose key `url` is the URL of that database; `NAME-jobs` when not given.
        storage_class: class of the volume; the cluster's default when not given.
        token_secret: Secret whose key `token` callers have to send; `NAME-token` when not given.
        tls_secret: Secret of the type `kubernetes.io/tls` for the server's own HTTPS.
        pull_secret: Secret for the registry of the image.
        ingress: host name under which an Ingress offers the service.
        ingress_class: class of the Ingress; the cluster's default when not given.
        ingress_tls: Secret with the certificate of the host name.
        allow_from: other namespaces whose pods may call.
        allow_to: networks that the component may call, such as `10.0.0.0/8:5432`, in addition to DNS.
        env: variables of the component.
        env_secret: Secret whose keys are further variables, such as the login of a bucket.
        serve_arguments: further arguments of `chainrule serve`, other than those that the manifests set.
        grace_s: seconds that calls under way get when a server is stopped.
        startup_s: seconds that loading the component may take.

    Raises:
        InputError: a value that a cluster would refuse, or values that do not fit together (`bad_option`).
    """

    image: str
    name: str
    namespace: str | None = None
    replicas: int = 1
    workers: int = 1
    cpu: str | None = None
    memory: str = "2Gi"
    shared_memory: str = "256Mi"
    gpu: int = 0
    hpa: int | None = None
    keda: int | None = None
    prometheus: str | None = None
    scale_to_zero: bool = False
    jobs: str | None = None
    jobs_secret: str | None = None
    storage_class: str | None = None
    token_secret: str | None = None
    tls_secret: str | None = None
    pull_secret: str | None = None
    ingress: str | None = None
    ingress_class: str | None = None
    ingress_tls: str | None = None
    allow_from: tuple[str, ...] = ()
    allow_to: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_secret: str | None = None
    serve_arguments: tuple[str, ...] = ()
    grace_s: int = 30
    startup_s: int = 300

    @property
    def shares_jobs(self) -> bool:
        """Whether jobs are in a database that all servers share."""
        return self.jobs == DATABASE

    @property
    def keeps_jobs(self) -> bool:
        """Whether jobs are in a volume of the one server."""
        return self.jobs is not None and not self.shares_jobs

    def __post_init__(self) -> None:
        self._check_names()
        self._check_arguments()
        self._check_jobs()
        self._check_sizes()
        self._check_together()

    def _check_names(self) -> None:
        # A StatefulSet adds a number to the name, a Service a word: 42 characters leave room in 63.
        _match(_LABEL, "name", self.name, "lower-case letters, digits and '-', at most 42")
        names = (
            "namespace", "storage_class", "jobs_secret", "token_secret", "tls_secret", "pull_secret",
            "env_secret",
        )  # fmt: skip
        for key in (*names, "ingress", "ingress_class", "ingress_tls"):
            _match(_DNS_NAME, key, getattr(self, key), "a DNS name in lower case")
        for namespace in self.allow_from:
            _match(_DNS_NAME, "allow_from", namespace, "the name of a namespace")
        for variable in self.env:
            _match(_VARIABLE, "env", variable, "the name of a variable")
        _match(_IMAGE, "image", self.image, "a reference such as registry/name@sha256:…")
        for address in self.allow_to:
            split_address(address)

    def _check_arguments(self) -> None:
        for argument in self.serve_arguments:
            flag = argument.partition("=")[0]
            if flag in _SET_HERE:
                instead = _SET_HERE[flag]
                fix = f"use {instead} of this command" if instead else "leave it out"
                raise InputError(
                    f"{flag} is set by the manifests: {fix}. --serve is for other options.",
                    code="bad_option",
                )

    def _check_jobs(self) -> None:
        if self.jobs is not None and "://" in self.jobs:
            raise InputError(
                "The URL of a database may hold a password, and is not written into manifests. Make a Secret "
                f"of it: kubectl create secret generic {self.jobs_secret or f'{self.name}-jobs'} "
                f"--from-literal=url=postgresql://…, and pass --jobs {DATABASE}.",
                code="bad_option",
            )
        if self.jobs_secret is not None and not self.shares_jobs:
            raise InputError(
                f"--jobs-secret is for jobs in a database: pass --jobs {DATABASE} too.",
                code="bad_option",
            )

    def _check_sizes(self) -> None:
        for key in ("cpu", "memory", "shared_memory", "jobs"):
            value = getattr(self, key)
            if key == "jobs" and self.shares_jobs:
                continue
            if value is not None and not (_QUANTITY.fullmatch(value) and quantity(value) > 0):
                raise _refused(key, "a quantity such as 2, 500m or 4Gi", value)
        for key, least in (
            ("replicas", 1), ("workers", 1), ("gpu", 0), ("grace_s", 0),
            ("startup_s", 1),
        ):  # fmt: skip
            value = getattr(self, key)
            if value is not None and value < least:
                raise _refused(key, f"at least {least}", value)
        if quantity(self.shared_memory) >= quantity(self.memory):
            raise InputError(
                f"shared_memory ({self.shared_memory}) is part of memory ({self.memory}) and has to be "
                "smaller.",
                code="bad_option",
            )

    def _check_together(self) -> None:
        for key in ("hpa", "keda"):
            value = getattr(self, key)
            if value is not None and value < self.replicas:
                raise _refused(key, f"at least replicas ({self.replicas})", value)
        if self.hpa and self.keda:
            raise InputError("Scale by --hpa or by --keda, not by both.", code="bad_option")
        if (self.keda is None) != (self.prometheus is None):
            raise InputError(
                "KEDA scales by what a Prometheus server knows: give --keda N and --prometheus URL together.",
                code="bad_option",
            )
        if self.scale_to_zero and self.keda is None:
            raise InputError("Only KEDA scales to zero (--keda N).", code="bad_option")
        if self.keeps_jobs and (self.replicas > 1 or self.hpa or self.keda):
            raise InputError(
                "Jobs in a volume belong to one server: another replica does not find them. Deploy one "
                f"replica with more workers, or keep jobs in a database (--jobs {DATABASE}).",
                code="bad_option",
            )
        if not self.keeps_jobs and self.storage_class is not None:
            raise InputError("--storage-class is for the volume of --jobs SIZE.", code="bad_option")
        if self.ingress is None and (self.ingress_class or self.ingress_tls):
            raise InputError(
                "Name the host of the Ingress too (--ingress HOST).", code="bad_option"
            )
        if self.ingress and not self.allow_from:
            raise InputError(
                "The network policy keeps the controller of the Ingress out: name its namespace too, such "
                "as --allow-from ingress-nginx.",
                code="bad_option",
            )
        if self.gpu and self.workers > 1:
            raise InputError(
                "Each worker process takes memory of the GPU for itself: use one worker per server "
                "and more replicas.",
                code="bad_option",
            )


def quantity(text: str) -> float:
    """The number that a quantity such as `500m` or `4Gi` stands for."""
    found = _QUANTITY.fullmatch(text)
    assert found is not None
    return float(found[1]) * _UNITS[found[2]]


def split_address(text: str) -> tuple[str, int | None]:
    """The network and the port of `10.0.0.0/8:5432`; the port is optional."""
    address, colon, port = (
        text.rpartition(":") if re.search(r"[\d\]]:\d+$", text) else (text, "", "")
    )
    try:
        network = str(ip_network(address.strip("[]")))
    except ValueError as error:
        raise _refused("allow_to", "a network such as 10.0.0.0/8:5432", text) from error
    if colon and not 0 < int(port) < 65_536:
        raise _refused("allow_to", "a port below 65536", text)
    return network, int(port) if colon else None


def _match(pattern: re.Pattern[str], key: str, value: str | None, expected: str) -> None:
    if value is not None and not pattern.fullmatch(value):
        raise _refused(key, expected, value)


def _refused(key: str, expected: str, value: object) -> InputError:
    return InputError(
        f"{key} (--{key.removesuffix('_s').replace('_', '-')}): expected {expected}; found {value!r}.",
        code="bad_option",
    )
