"""Kubernetes manifests, checked against the published schemas and by a server that really runs as they say.

The schemas let pass what an API server refuses (a quantity `banana`, a selector that finds no pod, a mount
without a volume, …): `refused_by_api_server` checks these.
"""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from chainrule.cli import main
from chainrule.deploy.kubernetes import (
    KubernetesDeployment,
    manifests,
    to_yaml,
    write_folder,
)
from chainrule.errors import InputError

DIGEST = f"sha256:{64 * 'a'}"
IMAGE = f"registry.example:5000/team/heat@{DIGEST}"
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGT]i?|Ki)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

variants = st.fixed_dictionaries(
    {},
    optional={
        "namespace": st.just("simulation"),
        "workers": st.integers(1, 9),
        "cpu": st.sampled_from(["2", "1500m"]),
        "memory": st.sampled_from(["512Mi", "8Gi", "1.5G"]),
        "tls_secret": st.just("heat-tls"),
        "pull_secret": st.just("registry"),
        "env_secret": st.just("bucket-keys"),
        "allow_to": st.lists(st.sampled_from(["10.1.0.0/16:5432", "::1/128", "192.0.2.7"])).map(
            tuple
        ),
        "env": st.dictionaries(st.just("MODE"), st.text(max_size=9)),
        "serve_arguments": st.just(("--access-log",)),
        "grace_s": st.integers(0, 900),
        "startup_s": st.integers(1, 3600),
    },
)
scalings = st.sampled_from(
    [
        {},
        {"replicas": 3},
        {"replicas": 2, "hpa": 8},
        {"keda": 8, "prometheus": "http://prometheus.monitoring:9090", "scale_to_zero": True},
        {"jobs": "10Gi", "storage_class": "fast"},
        {"jobs": "postgresql", "replicas": 3},
        {"jobs": "postgresql", "jobs_secret": "shared-jobs", "hpa": 8},
        {"ingress": "heat.example", "ingress_tls": "heat-cert", "allow_from": ("ingress-nginx",)},
    ]
)


def pod_of(objects):
    (workload,) = [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    return workload["spec"]["template"]


def refused_by_api_server(objects):
    """What an API server refuses although the schemas allow it."""
    problems = []
    pod = pod_of(objects)
    spec = pod["spec"]
    (container,) = spec["containers"]
    labels = pod["metadata"]["labels"].items()
    for each in objects:
        selector = each.get("spec", {}).get("selector") or each.get("spec", {}).get("podSelector")
        wanted = (selector or {}).get("matchLabels", selector or {})
        if not wanted.items() <= labels:
            problems.append(f"{each['kind']} selects no pod")
        if not NAME.fullmatch(each["metadata"]["name"]):
            problems.append("name")
    claims = [
        claim["metadata"]["name"]
        for each in objects
        for claim in each.get("spec", {}).get("volumeClaimTemplates", ())
    ]
    volumes = [volume["name"] for volume in spec["volumes"]] + claims
    mounts = [mount["name"] for mount in container["volumeMounts"]]
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    if sorted(volumes) != sorted(mounts) or len(set(places)) < len(places):
        problems.append("mounts and volumes")
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if len(container[kind].keys() & {"httpGet", "exec", "tcpSocket", "grpc"}) != 1:
            problems.append(kind)
    if not container["image"]:
        problems.append("image")
    sizes = [
        *container["resources"]["requests"].values(),
        *container["resources"]["limits"].values(),
    ]
    if not all(QUANTITY.fullmatch(size) for size in sizes):
        problems.append("quantities")
    if any(
        container["resources"]["requests"].get(key) != size
        for key, size in container["resources"]["limits"].items()
        if "/" in key
    ):
        problems.append("an extended resource is requested as it is limited")
    if container.get("imagePullPolicy", "Always") not in ("Always", "IfNotPresent", "Never"):
        problems.append("imagePullPolicy")
    for each in objects:
        rolling = each.get("spec", {}).get("strategy", {}).get("rollingUpdate", {})
        if rolling and not any(rolling.values()):
            problems.append("no pod may start and none may stop")
        for metric in each["spec"]["metrics"] if each["kind"] == "HorizontalPodAutoscaler" else ():
            if metric["type"] not in (
                "Pods",
                "Resource",
                "External",
                "Object",
                "ContainerResource",
            ):
                problems.append("type of a metric")
            elif metric["type"].lower() not in metric:
                problems.append("a metric without what it is about")
    ports = {port["name"] for port in container["ports"]}
    for each in objects:
        for port in each["spec"].get("ports", ()) if each["kind"] == "Service" else ():
            if port["targetPort"] not in ports:
                problems.append("port")
    return problems


@pytest.fixture(scope="module")
def validate():
    return pytest.importorskip("kubernetes_validate").validate


@settings(deadline=None, max_examples=25)
@given(variants, scalings, st.sampled_from(["1.25", "1.29", "1.37"]))
def test_every_deployment_is_one_that_a_cluster_takes(validate, variant, scaling, version):
    objects = manifests(KubernetesDeployment(image=IMAGE, name="heat", **variant, **scaling))
    text = to_yaml(objects)
    read = list(yaml.safe_load_all(text))
    assert read == objects == json.loads(json.dumps(objects))
    for each in read:
        if not each["apiVersion"].startswith("keda.sh/"):
            validate(each, version, strict=True)
    assert refused_by_api_server(read) == []
    texts = [
        event.value
        for event in yaml.parse(text)
        if isinstance(event, yaml.ScalarEvent) and event.style is None
    ]
    # What has no quotes is a key, a number or a truth value, for readers of every version of YAML.
    assert all(re.fullmatch(r"[a-zA-Z]{2,}|\d+", each) for each in texts)


def container_of(objects):
    return pod_of(objects)["spec"]["containers"][0]


def workload_of(objects):
    return next(each for each in objects if each["kind"] == "Deployment")


def autoscaler_of(objects):
    return next(each for each in objects if each["kind"] == "HorizontalPodAutoscaler")


# The ten mistakes that the schemas let pass, and a real API server refuses.
MISTAKES = {
    "cpu: banana": lambda o: container_of(o)["resources"]["requests"].update(cpu="banana"),
    "a selector that finds no pod": lambda o: pod_of(o)["metadata"].update(labels={"app": "other"}),
    "a mount without a volume": lambda o: pod_of(o)["spec"]["volumes"].pop(),
    "two handlers": lambda o: container_of(o)["readinessProbe"].update(exec={"command": ["true"]}),
    "no image": lambda o: container_of(o).update(image=""),
    "no room to roll": lambda o: workload_of(o)["spec"]["strategy"].update(
        rollingUpdate={"maxSurge": 0, "maxUnavailable": 0}
    ),
    "imagePullPolicy": lambda o: container_of(o).update(imagePullPolicy="Sometimes"),
    "a metric of no type": lambda o: autoscaler_of(o)["spec"]["metrics"][0].update(type="Bogus"),
    "a metric about nothing": lambda o: autoscaler_of(o)["spec"]["metrics"][0].pop("pods"),
    "a name that is no DNS name": lambda o: o[0]["metadata"].update(name="Heat_1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_schemas_let_pass_what_is_checked_here(validate, mistake):
    objects = manifests(KubernetesDeployment(image=IMAGE, name="heat", hpa=3))
    assert refused_by_api_server(objects) == []
    MISTAKES[mistake](objects)
    for each in objects:
        validate(each, "1.37", strict=True)
    assert refused_by_api_server(objects) != []


def test_what_a_pod_may_do_and_how_it_stops():
    objects = manifests(KubernetesDeployment(image=IMAGE, name="heat", grace_s=120, memory="4Gi"))
    spec = pod_of(objects)["spec"]
    (container,) = spec["containers"]
    assert container["image"] == IMAGE
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert spec["terminationGracePeriodSeconds"] >= waits + 120 + 10
    limit = int(container["args"][container["args"].index("--max-inflight-bytes") + 1])
    assert limit < 4 << 30
    token = next(volume for volume in spec["volumes"] if volume["name"] == "token")
    assert token["secret"] == {"secretName": "heat-token", "defaultMode": 0o440}
    assert not any("subPath" in mount for mount in container["volumeMounts"])


def test_servers_that_share_their_jobs():
    """They are a Deployment, and find the URL of the database in a file: it is in no argument or variable."""
    deployment = KubernetesDeployment(image=IMAGE, name="heat", jobs="postgresql", replicas=3)
    objects = manifests(deployment)
    assert [each["kind"] for each in objects if each["kind"].endswith("Set")] == []
    (workload,) = [each for each in objects if each["kind"] == "Deployment"]
    assert workload["spec"]["replicas"] == 3
    spec = pod_of(objects)["spec"]
    (container,) = spec["containers"]
    place = container["args"][container["args"].index("--jobs") + 1]
    assert {"name": "jobs", "mountPath": str(Path(place).parent), "readOnly": True} in container[
        "volumeMounts"
    ]
    (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "jobs"]
    assert volume["secret"]["secretName"] == "heat-jobs"
    assert Path(place).name == "url"
    (policy,) = [each for each in objects if each["kind"] == "NetworkPolicy"]
    assert {"protocol": "TCP", "port": 5432} in policy["spec"]["egress"][0]["ports"]


def test_secret_variables_come_from_a_secret():
    deployment = KubernetesDeployment(image=IMAGE, name="heat", env_secret="bucket-keys")
    container = container_of(manifests(deployment))
    assert container["envFrom"] == [{"secretRef": {"name": "bucket-keys"}}]


def test_a_scaled_object_reads_as_keda_documents_it():
    (scaled,) = [
        each
        for each in manifests(
            KubernetesDeployment(image=IMAGE, name="heat", keda=9, prometheus="http://p:9090")
        )
        if each["kind"] == "ScaledObject"
    ]
    assert scaled["spec"]["scaleTargetRef"]["name"] == "heat"
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["maxReplicaCount"]) == (1, 9)
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


@pytest.mark.parametrize("scaling", [{}, {"jobs": "1Gi"}], ids=["deployment", "stateful set"])
def test_prometheus_finds_the_pods_as_the_page_says(scaling):
    """Prometheus keeps the pods whose labels, joined by `;`, match the whole expression."""
    page = (Path(__file__).parents[2] / "docs/how-to/kubernetes.md").read_text()
    _, _, text = page.partition("```yaml\nscrape_configs:")
    (job,) = yaml.safe_load("scrape_configs:" + text.partition("```")[0])["scrape_configs"]
    (keep,) = [rule for rule in job["relabel_configs"] if rule.get("action") == "keep"]
    pod = pod_of(manifests(KubernetesDeployment(image=IMAGE, name="heat", **scaling)))
    known = {
        "__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", name): value
        for name, value in pod["metadata"]["labels"].items()
    }
    values = ";".join(known.get(name, "") for name in keep["source_labels"])
    assert re.fullmatch(keep["regex"], values)


def adapter_query():
    """What prometheus-adapter makes of the rule on the how-to page, for the pods of two servers."""
    page = (Path(__file__).parents[2] / "docs/how-to/kubernetes.md").read_text()
    text = page.partition('title="prometheus-adapter values"\n')[2].partition("```")[0]
    (rule,) = yaml.safe_load(text)["rules"]["custom"]
    assert rule["seriesQuery"].startswith("chainrule_load{")
    filled = {
        "<<.Series>>": "chainrule_load",
        "<<.LabelMatchers>>": 'namespace="science",pod=~"heat-64f7b9c6d-.*"',
        "<<.GroupBy>>": "pod",
    }
    query = rule["metricsQuery"]
    for name, value in filled.items():
        query = query.replace(name, value)
    return query


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_autoscalers_count_all_work_of_two_servers(tmp_path):
    """Two servers, one call each; of seven jobs that wait, each server counts its half.

    The pods of a Deployment or StatefulSet whose name begins in the same way are not counted.
    """
    deployment = KubernetesDeployment(image=IMAGE, name="heat", hpa=9, workers=2)
    (metric,) = autoscaler_of(manifests(deployment))["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == "chainrule_load"
    assert metric["pods"]["target"] == {"type": "AverageValue", "averageValue": "2"}
    deployment = KubernetesDeployment(
        image=IMAGE, name="heat", keda=9, prometheus="http://p:9090", jobs="postgresql", workers=2
    )
    (scaled,) = [each for each in manifests(deployment) if each["kind"] == "ScaledObject"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "2"
    series = [
        {
            "series": f'chainrule_load{{namespace="science",pod="{pod}",component="heat"}}',
            "values": f"{load}x5",
        }
        for pod, load in {
            "heat-64f7b9c6d-a2b3c": 4.5,
            "heat-64f7b9c6d-x7z9k": 4.5,
            "mesh-5d8c9f7b4-q4w8r": 100,
            "heat-pump-7c6b5d4f9-m2n4p": 100,
            "heat-pump-0": 100,
        }.items()
    ]
    asked = [
        (trigger["metadata"]["query"], {"{}": 9}),
        (
            adapter_query(),
            {'{pod="heat-64f7b9c6d-a2b3c"}': 4.5, '{pod="heat-64f7b9c6d-x7z9k"}': 4.5},
        ),
    ]
    tests = [
        {
            "expr": query,
            "eval_time": "3m",
            "exp_samples": [{"labels": of, "value": value} for of, value in found.items()],
        }
        for query, found in asked
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": tests}
    (tmp_path / "test.json").write_text(json.dumps({"rule_files": [], "tests": [test]}))
    command = ["promtool", "test", "rules", "test.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "Heat"}, r"name \(--name\): expected lower-case letters.*found 'Heat'"),
        ({"name": "h" * 60}, "at most 42"),
        ({"namespace": "my_space"}, "--namespace"),
        ({"memory": "banana"}, r"--memory\): expected a quantity such as 2, 500m or 4Gi"),
        ({"cpu": "0"}, "--cpu"),
        ({"replicas": 0}, r"--replicas\): expected at least 1; found 0"),
        ({"shared_memory": "2Gi"}, "has to be smaller"),
        ({"hpa": 2, "replicas": 4}, r"--hpa\): expected at least replicas \(4\)"),
        ({"hpa": 2, "keda": 2, "prometheus": "http://p"}, "not by both"),
        ({"keda": 4}, "--prometheus URL together"),
        ({"scale_to_zero": True}, "Only KEDA scales to zero"),
        ({"jobs": "1Gi", "replicas": 2}, "belong to one server"),
        ({"jobs": "postgresql://u:pa55@h/d"}, "kubectl create secret generic heat-jobs"),
        ({"jobs_secret": "heat-jobs", "jobs": "1Gi"}, "--jobs postgresql"),
        ({"storage_class": "fast"}, "--jobs SIZE"),
        ({"env_secret": "Bucket_Keys"}, "--env-secret"),
        ({"ingress_class": "nginx"}, "--ingress HOST"),
        ({"ingress": "heat.example"}, "--allow-from ingress-nginx"),
        ({"gpu": 1, "workers": 2}, "one worker per server"),
        ({"allow_to": ("example.com",)}, "a network such as"),
        ({"allow_to": ("10.0.0.0/8:99999",)}, "below 65536"),
        ({"image": "Heat image"}, "--image"),
        ({"env": {"1A": ""}}, "name of a variable"),
        ({"serve_arguments": ("--port=9000",)}, "--port is set by the manifests"),
        (
            {"serve_arguments": ("--workers", "4")},
            "--workers is set by the manifests: .*--workers of",
        ),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_here(wrong, said):
    with pytest.raises(InputError, match=said):
        KubernetesDeployment(**{"image": IMAGE, "name": "heat", **wrong})


def test_a_server_runs_as_the_manifests_say(tmp_path):
    """The arguments, the variables, the Secrets and the probes of the pod, with its places under a folder."""
    (tmp_path / "double.py").write_text(
        "from chainrule import component\n\n\n@component\ndef double(x: float) -> float:\n    return 2 * x\n"
    )
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    for name in (
        "run/chainrule/token",
        "run/chainrule/tls",
        "jobs",
        "output",
        "tmp",
        "home/component",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run/chainrule/token/token").write_text("a-token-of-enough-letters\n")
    tls = tmp_path / "run/chainrule/tls"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", tls / "tls.key", "-out", tls / "tls.crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    deployment = KubernetesDeployment(
        image=IMAGE, name="double", jobs="1Gi", tls_secret="double-tls", workers=2
    )
    (container,) = pod_of(manifests(deployment))["spec"]["containers"]
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    arguments = [
        f"{tmp_path}{each}" if each.startswith(tuple(places)) else each
        for each in container["args"]
    ]
    # Only the port differs: that of the manifests may be in use here.
    arguments[arguments.index("--port") + 1] = "0"
    environment = {each["name"]: each["value"] for each in container["env"]}
    environment["TMPDIR"] = f"{tmp_path}/tmp"
    environment |= {
        "CHAINRULE_COMPONENT": f"{tmp_path}/double.py",
        "HOME": f"{tmp_path}/home/component",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "chainrule", *arguments, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        url = json.loads(server.stdout.readline())["url"]
        port = url.rpartition(":")[2].strip("/")
        context = ssl.create_default_context(cafile=tls / "tls.crt")

        def get(path, **headers):
            request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", headers=headers)
            return urllib.request.urlopen(request, context=context, timeout=60)

        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container[kind]["httpGet"]
            assert probe["scheme"] == "HTTPS"
            assert get(probe["path"]).status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get("/metrics")
        metrics = get("/metrics", Authorization="Bearer a-token-of-enough-letters").read().decode()
        # The names by which autoscalers scale.
        assert "\nchainrule_load{" in metrics
        assert any((tmp_path / "jobs").iterdir())
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode in (0, -signal.SIGTERM)


def test_a_folder_for_kustomize(tmp_path):
    objects = manifests(KubernetesDeployment(image=IMAGE, name="heat", hpa=3))
    files = write_folder(objects, tmp_path / "heat")
    listed = yaml.safe_load(files[-1].read_text())
    assert files[-1].name == "kustomization.yaml"
    assert listed["resources"] == [file.name for file in files[:-1]]
    assert [yaml.safe_load(file.read_text()) for file in files[:-1]] == objects
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match=r"Cannot write .*file"):
        write_folder(objects, tmp_path / "file")


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(["deploy", "kubernetes", *map(str, arguments)])
    return left.value.code, *capsys.readouterr()


def test_the_command(tmp_path, capsys):
    code, out, _ = run(capsys, IMAGE, "--replicas", 2, "--env", "MODE=a=b", "--serve=--access-log")
    assert code == 0
    objects = list(yaml.safe_load_all(out))
    (container,) = pod_of(objects)["spec"]["containers"]
    assert {"name": "MODE", "value": "a=b"} in container["env"]
    assert container["args"][-1] == "--access-log"
    assert pod_of(objects)["metadata"]["labels"]["app.kubernetes.io/name"] == "heat"

    code, out, _ = run(capsys, IMAGE, "--output", tmp_path / "all.yaml", "--json")
    assert json.loads(out) == {"written": [str(tmp_path / "all.yaml")]}
    assert len(list(yaml.safe_load_all((tmp_path / "all.yaml").read_text()))) == 6

    code, out, _ = run(capsys, IMAGE, "--output", tmp_path / "folder")
    assert (code, out) == (0, f"{tmp_path / 'folder'}\n")
    assert (tmp_path / "folder" / "kustomization.yaml").exists()


def test_a_folder_says_what_its_image_is_called(tmp_path, capsys):
    folder = tmp_path / "plate"
    folder.mkdir()
    (folder / "component.py").write_text("def apply(inputs):\n    return inputs\n")
    (folder / "component.yaml").write_text(
        "name: thin_plate\nversion: '2.1'\nbuild:\n  gpu: true\n  check: false\n"
    )
    arguments = [folder, "--registry", "registry.example/team/", "--allow-tag", "--json"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    (container,) = pod_of(json.loads(out))["spec"]["containers"]
    assert container["image"] == "registry.example/team/thin_plate:2.1"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    code, _, error = run(capsys, folder, "--memory", "lots", "--allow-tag")
    assert code == 2
    assert "--memory" in error
    code, _, error = run(capsys, "127.0.0.1:1/team/heat:1")
    assert code == 1
    assert "--allow-tag" in error


APISERVER = os.environ.get("CHAINRULE_KUBECTL")


@pytest.mark.slow
@pytest.mark.skipif(APISERVER is None, reason="CHAINRULE_KUBECTL names kubectl with a cluster")
@pytest.mark.parametrize("scaling", [{"hpa": 3}, {"jobs": "1Gi"}], ids=["scaled", "jobs"])
def test_a_real_cluster_takes_them(scaling, tmp_path):
    folder = Path(tmp_path / "heat")
    write_folder(manifests(KubernetesDeployment(image=IMAGE, name="heat", **scaling)), folder)
    done = subprocess.run(
        [*APISERVER.split(), "apply", "--dry-run=server", "-k", folder],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
