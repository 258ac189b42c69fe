"""The objects of a deployment, as `kubectl apply` takes them: one function for each kind of object.

Four decisions that the objects share:

- A server that is stopped closes its socket at once. So a container waits before it stops (`preStop`), until
  the other nodes have heard that it is no endpoint any more; then calls under way get their grace.
- The root file system is read-only. What a server writes is in volumes: `/tmp`, the home folder (caches),
  `/output`, and the jobs.
- Bodies of calls in shared memory count as memory of the container, so the server is told to refuse calls
  before the kernel kills it.
- Secrets are mounted as folders. A single file (`subPath`) would never be updated.
"""

from __future__ import annotations

from typing import Any

from chainrule.deploy.kubernetes._settings import KubernetesDeployment, quantity, split_address

Object = dict[str, Any]

_PRE_STOP_S = 10
_USER = 10001
_TOKEN, _TLS, _JOBS = "/run/chainrule/token", "/run/chainrule/tls", "/jobs"
_DATABASE, _DATABASE_PORT = "/run/chainrule/jobs", 5432
# Calls that run or wait at a server, and its share of the jobs that wait; the sum over servers is all work.
_LOAD = "chainrule_load"


def manifests(deployment: KubernetesDeployment) -> list[Object]:
    """The objects of a deployment, in the order in which they are applied.

    Args:
        deployment: what is deployed, and how.

    Returns:
        One dictionary for each object, of JSON types only.

    Example:
        >>> from chainrule.deploy.kubernetes import KubernetesDeployment, manifests
        >>> digest = "sha256:" + 64 * "0"
        >>> heat = KubernetesDeployment(image=f"registry.example/heat@{digest}", name="heat")
        >>> [each["kind"] for each in manifests(heat)]
        ['ServiceAccount', 'NetworkPolicy', 'Service', 'Service', 'Deployment', 'PodDisruptionBudget']
    """
    objects = [
        _service_account(deployment),
        _network_policy(deployment),
        _service(deployment),
        _replica_service(deployment),
        _stateful_set(deployment) if deployment.keeps_jobs else _deployment(deployment),
        _disruption_budget(deployment),
    ]
    if deployment.hpa:
        objects.append(_autoscaler(deployment))
    if deployment.keda:
        objects.append(_scaled_object(deployment))
    if deployment.ingress:
        objects.append(_ingress(deployment))
    return objects


def _object(
    deployment: KubernetesDeployment, version: str, kind: str, *, suffix: str = "", **content: Any
) -> Object:
    metadata: Object = {"name": deployment.name + suffix}
    if deployment.namespace:
        metadata["namespace"] = deployment.namespace
    metadata["labels"] = _labels(deployment)
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}


def _selector(deployment: KubernetesDeployment) -> dict[str, str]:
    """What the pods of a deployment have in common; never changed, because a Deployment cannot change it."""
    return {"app.kubernetes.io/name": deployment.name}


def _labels(deployment: KubernetesDeployment) -> dict[str, str]:
    """Of all objects, and of the pods, by which Prometheus finds them."""
    return {
        **_selector(deployment),
        "app.kubernetes.io/part-of": "chainrule",
        "app.kubernetes.io/managed-by": "chainrule",
    }


def _service_account(deployment: KubernetesDeployment) -> Object:
    """An account without rights: a component does not use the API of the cluster."""
    return _object(deployment, "v1", "ServiceAccount", automountServiceAccountToken=False)


def _service(deployment: KubernetesDeployment) -> Object:
    """One address for callers; connections are divided among the servers."""
    spec = {"selector": _selector(deployment), "ports": [_service_port(deployment)]}
    return _object(deployment, "v1", "Service", spec=spec)


def _replica_service(deployment: KubernetesDeployment) -> Object:
    """A name that resolves to the addresses of all servers that are ready."""
    spec = {
        "clusterIP": "None",
        "selector": _selector(deployment),
        "ports": [_service_port(deployment)],
    }
    return _object(deployment, "v1", "Service", suffix="-replicas", spec=spec)


def _service_port(deployment: KubernetesDeployment) -> Object:
    return {"name": "https" if deployment.tls_secret else "http", "port": 8000, "targetPort": "api"}


def _deployment(deployment: KubernetesDeployment) -> Object:
    scaled = deployment.hpa or deployment.keda
    # An autoscaler sets the number of replicas; a number here would undo that at each `kubectl apply`.
    count = {} if scaled else {"replicas": deployment.replicas}
    spec = {
        **count,
        "selector": {"matchLabels": _selector(deployment)},
        # A new server is ready before an old one stops.
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "template": _pod(deployment),
    }
    return _object(deployment, "apps/v1", "Deployment", spec=spec)


def _stateful_set(deployment: KubernetesDeployment) -> Object:
    """A server whose jobs survive it: the volume is the next server's, and two never share it."""
    storage = {"storageClassName": deployment.storage_class} if deployment.storage_class else {}
    claim = {
        "metadata": {"name": "jobs"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": deployment.jobs}},
            **storage,
        },
    }
    spec = {
        "replicas": 1,
        "serviceName": f"{deployment.name}-replicas",
        "selector": {"matchLabels": _selector(deployment)},
        "template": _pod(deployment),
        "volumeClaimTemplates": [claim],
    }
    return _object(deployment, "apps/v1", "StatefulSet", spec=spec)


def _pod(deployment: KubernetesDeployment) -> Object:
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": _selector(deployment)},
    }
    pull = (
        {"imagePullSecrets": [{"name": deployment.pull_secret}]} if deployment.pull_secret else {}
    )
    spec = {
        "serviceAccountName": deployment.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _PRE_STOP_S + deployment.grace_s + 10,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [spread],
        **pull,
        "containers": [_container(deployment)],
        "volumes": _volumes(deployment),
    }
    return {"metadata": {"labels": _labels(deployment)}, "spec": spec}


def _container(deployment: KubernetesDeployment) -> Object:
    secret = deployment.env_secret
    return {
        "name": "server",
        "image": deployment.image,
        "args": _arguments(deployment),
        "env": [{"name": name, "value": value} for name, value in _environment(deployment).items()],
        **({"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}),
        "ports": [{"name": "api", "containerPort": 8000}],
        "resources": _resources(deployment),
        "startupProbe": {
            **_probe(deployment, "/ready"),
            "periodSeconds": 5,
            "failureThreshold": deployment.startup_s // 5 + 2,
        },
        "readinessProbe": {**_probe(deployment, "/ready"), "periodSeconds": 5},
        "livenessProbe": {**_probe(deployment, "/health"), "periodSeconds": 10},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(_PRE_STOP_S)]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": name, "mountPath": place, **({"readOnly": True} if is_read_only else {})}
            for name, place, is_read_only in _mounts(deployment)
        ],
    }


def _arguments(deployment: KubernetesDeployment) -> list[str]:
    """`chainrule serve` without a component serves the one that the image names."""
    half = int(quantity(deployment.memory) / 2)
    arguments = ["serve", "--host", "0.0.0.0", "--port", "8000"]
    arguments += ["--token-file", f"{_TOKEN}/token", "--workers", str(deployment.workers)]
    arguments += ["--output-path", "/output", "--max-inflight-bytes", str(half)]
    arguments += ["--max-cache-bytes", str(half // 4), "--max-residual-bytes", str(half // 4)]
    arguments += [
        "--grace",
        str(deployment.grace_s),
        "--startup-timeout",
        str(deployment.startup_s),
    ]
    arguments += ["--log-format", "json"]
    if deployment.tls_secret:
        arguments += ["--tls-certificate", f"{_TLS}/tls.crt", "--tls-key", f"{_TLS}/tls.key"]
    if deployment.keeps_jobs:
        arguments += ["--jobs-folder", _JOBS]
    if deployment.shares_jobs:
        arguments += ["--jobs", f"{_DATABASE}/url"]
    return [*arguments, *deployment.serve_arguments]


def _environment(deployment: KubernetesDeployment) -> dict[str, str]:
    """Without the number of threads, BLAS and XLA start one per core of the node in every worker."""
    cpus = quantity(deployment.cpu) if deployment.cpu else deployment.workers
    threads = max(1, int(cpus / deployment.workers))
    return {"OMP_NUM_THREADS": str(threads), "TMPDIR": "/tmp", **deployment.env}


def _resources(deployment: KubernetesDeployment) -> Object:
    """Memory has a limit that equals the request: a neighbour cannot take it. CPU has none."""
    gpus = {"nvidia.com/gpu": str(deployment.gpu)} if deployment.gpu else {}
    return {
        "requests": {
            "cpu": deployment.cpu or str(deployment.workers),
            "memory": deployment.memory,
            **gpus,
        },
        "limits": {"memory": deployment.memory, **gpus},
    }


def _probe(deployment: KubernetesDeployment, path: str) -> Object:
    scheme = "HTTPS" if deployment.tls_secret else "HTTP"
    return {
        "httpGet": {"path": path, "port": "api", "scheme": scheme},
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }


def _mounts(deployment: KubernetesDeployment) -> list[tuple[str, str, bool]]:
    """The name, the place and whether it is read-only, of all that is mounted."""
    mounts = [
        ("token", _TOKEN, True),
        ("tmp", "/tmp", False),
        ("home", "/home/component", False),
        ("output", "/output", False),
        ("shared-memory", "/dev/shm", False),
    ]
    if deployment.tls_secret:
        mounts.append(("tls", _TLS, True))
    if deployment.keeps_jobs:
        mounts.append(("jobs", _JOBS, False))
    if deployment.shares_jobs:
        mounts.append(("jobs", _DATABASE, True))
    return mounts


def _volumes(deployment: KubernetesDeployment) -> list[Object]:
    """All but the claim for jobs, which the StatefulSet adds."""
    token = deployment.token_secret or f"{deployment.name}-token"
    memory = {"medium": "Memory", "sizeLimit": deployment.shared_memory}
    volumes: list[Object] = [
        _secret_volume("token", token),
        *({"name": name, "emptyDir": {}} for name in ("tmp", "home", "output")),
        {"name": "shared-memory", "emptyDir": memory},
    ]
    if deployment.tls_secret:
        volumes.append(_secret_volume("tls", deployment.tls_secret))
    if deployment.shares_jobs:
        volumes.append(_secret_volume("jobs", deployment.jobs_secret or f"{deployment.name}-jobs"))
    return volumes


def _secret_volume(name: str, secret: str) -> Object:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}


def _disruption_budget(deployment: KubernetesDeployment) -> Object:
    """Nodes are emptied one server at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": _selector(deployment)}}
    return _object(deployment, "policy/v1", "PodDisruptionBudget", spec=spec)


def _autoscaler(deployment: KubernetesDeployment) -> Object:
    """As many servers as have workers for all calls and jobs, through an adapter of the metrics API."""
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": _LOAD},
            "target": {"type": "AverageValue", "averageValue": str(deployment.workers)},
        },
    }
    spec = {
        "scaleTargetRef": _target(deployment),
        "minReplicas": deployment.replicas,
        "maxReplicas": deployment.hpa,
        "metrics": [metric],
    }
    return _object(deployment, "autoscaling/v2", "HorizontalPodAutoscaler", spec=spec)


def _scaled_object(deployment: KubernetesDeployment) -> Object:
    """The same by KEDA, which can also start the first server.

    A server that is not there counts no waiting calls. To start one, callers need an address that holds
    their requests meanwhile (KEDA's HTTP add-on), or a further trigger of their own.
    """
    # Pods of a Deployment end in a hash and five characters: those of `heat-pump` are not those of `heat`.
    labels = [f'pod=~"{deployment.name}-[a-z0-9]+-[a-z0-9]{{5}}"']
    if deployment.namespace:
        labels.insert(0, f'namespace="{deployment.namespace}"')
    trigger = {
        "type": "prometheus",
        "metadata": {
            "serverAddress": deployment.prometheus,
            "query": f"sum({_LOAD}{{{','.join(labels)}}})",
            "threshold": str(deployment.workers),
        },
    }
    spec = {
        "scaleTargetRef": _target(deployment),
        "minReplicaCount": 0 if deployment.scale_to_zero else deployment.replicas,
        "maxReplicaCount": deployment.keda,
        "triggers": [trigger],
    }
    return _object(deployment, "keda.sh/v1alpha1", "ScaledObject", spec=spec)


def _target(deployment: KubernetesDeployment) -> Object:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment.name}


def _network_policy(deployment: KubernetesDeployment) -> Object:
    """Pods of its namespace and of `allow_from` may call it; it may call DNS, `allow_to` and a database."""
    callers: list[Object] = [{"podSelector": {}}]
    for namespace in deployment.allow_from:
        name = {"kubernetes.io/metadata.name": namespace}
        callers.append({"namespaceSelector": {"matchLabels": name}})
    ports_anywhere: list[Object] = [
        {"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")
    ]
    if deployment.shares_jobs:
        ports_anywhere.append({"protocol": "TCP", "port": _DATABASE_PORT})
    outgoing: list[Object] = [{"ports": ports_anywhere}]
    for address in deployment.allow_to:
        network, port = split_address(address)
        ports = {"ports": [{"protocol": "TCP", "port": port}]} if port else {}
        outgoing.append({"to": [{"ipBlock": {"cidr": network}}], **ports})
    spec = {
        "podSelector": {"matchLabels": _selector(deployment)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": callers, "ports": [{"protocol": "TCP", "port": "api"}]}],
        "egress": outgoing,
    }
    return _object(deployment, "networking.k8s.io/v1", "NetworkPolicy", spec=spec)


def _ingress(deployment: KubernetesDeployment) -> Object:
    port = {"name": _service_port(deployment)["name"]}
    backend = {"service": {"name": deployment.name, "port": port}}
    rule = {
        "host": deployment.ingress,
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
    }
    spec: Object = {"rules": [rule]}
    if deployment.ingress_class:
        spec["ingressClassName"] = deployment.ingress_class
    if deployment.ingress_tls:
        spec["tls"] = [{"hosts": [deployment.ingress], "secretName": deployment.ingress_tls}]
    return _object(deployment, "networking.k8s.io/v1", "Ingress", spec=spec)
