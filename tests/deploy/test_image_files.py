"""What an image is built from, as text and files: no engine is needed."""

import json
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from chainrule.cli import main
from chainrule.deploy import images
from chainrule.deploy.images._build import _names, write_wheel
from chainrule.deploy.images._inside import bill_of_materials
from chainrule.deploy.images._plan import Requirements
from chainrule.errors import (
    CapabilityError,
    ChainruleError,
    DefinitionError,
    InputError,
    StorageError,
)

MODULE = "def apply(inputs): ...\n"


def component(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"component_py": MODULE, **files}.items():
        content = text if isinstance(text, bytes) else text.encode()
        (folder / name.replace("_py", ".py").replace("__", ".")).write_bytes(content)
    return folder


def lines_of(plan, start):
    return [line for line in images.containerfile(plan).splitlines() if line.startswith(start)]


def test_a_containerfile_has_three_stages_and_no_root(tmp_path):
    plan = images.plan_build(component(tmp_path / "heat", requirements__txt="scipy\n"))
    assert lines_of(plan, "FROM") == [
        "FROM docker.io/library/python:3.12-slim-bookworm AS system",
        "FROM system AS packages",
        "FROM system",
    ]
    assert lines_of(plan, "USER") == ["USER 10001:10001"]
    assert lines_of(plan, "ENTRYPOINT") == ['ENTRYPOINT ["/opt/venv/bin/chainrule"]']
    (command,) = lines_of(plan, "CMD")
    command = json.loads(command.removeprefix("CMD "))
    # By itself it listens for others, and therefore only with a token.
    assert command[:2] == ["serve", "/component/component.py"]
    assert "--token-file" in command
    assert "--insecure" not in command
    (health,) = lines_of(plan, "HEALTHCHECK")
    assert "healthcheck.py" in health
    # What changes often comes last.
    text = images.containerfile(plan)
    assert text.index("install.sh") < text.index("COPY component ")
    assert text.index("_inside") > text.index("USER")


def test_settings_of_component_yaml_reach_the_containerfile(tmp_path):
    yaml = """
    name: heat
    version: 1.2.0
    description: "Warm\\nand $HOME"
    build:
      base: ubuntu:24.04
      python: "3.13"
      requirements: pylock.toml
      extras: [jax]
      apt: [libgomp1]
      package_data: [[table.csv, /opt/table.csv]]
      env: {MODE: "fast"}
      build_env: {UV_INDEX_URL: "https://example.org/simple"}
      steps: ["RUN echo hello"]
      secrets: [INDEX_PASSWORD]
      credentials: [{host: example.org, secret_id: token}]
      run_tests: true
      check_gradients: point.json
      metadata: {owner: me}
    """
    folder = component(
        tmp_path / "heat",
        component__yaml="\n".join(line[4:] for line in yaml.splitlines()),
        pylock__toml='lock-version = "1.0"\n',
        table__csv="1",
        point__json="{}",
    )
    plan = images.plan_build(folder, gpu=True)
    text = images.containerfile(plan)
    assert "FROM ubuntu:24.04 AS system" in text
    assert "RUN sh /tmp/system.sh libgomp1" in text
    assert "--mount=type=secret,id=INDEX_PASSWORD --mount=type=secret,id=token" in text
    assert 'ENV UV_INDEX_URL="https://example.org/simple"' in text
    (install,) = [line for line in lines_of(plan, "RUN") if "install.sh" in line]
    words = shlex.split(install)
    wheel = f"file:///build/{plan.wheel}"
    assert words[-4:] == [f"chainrule[serve,jax] @ {wheel}", "pylock.toml", "3.13", ""]
    assert "COPY package_data/0 /opt/table.csv" in text
    assert 'MODE="fast"' in text
    assert 'NVIDIA_VISIBLE_DEVICES="all"' in text
    assert "RUN echo hello" in text
    assert "--check --run-tests --check-gradients /component/point.json" in text
    assert r'org.opencontainers.image.description="Warm and \$HOME"' in text
    # What is for the installation only is not in the last stage.
    assert "UV_INDEX_URL" not in text[text.rindex("FROM system") :]
    context = images.write_context(plan, tmp_path / "context")
    assert (context / "credentials").read_text() == "example.org __token__ token\n"


def test_the_peers_configuration_is_read(tmp_path):
    config = """
name: old
version: 2.0.0
env: {A: b}
metadata: {who: us}
build_config:
  base_image: debian:bookworm-slim
  target_platform: linux/arm64
  extra_packages: [git]
  package_data: [[data.txt, data.txt]]
  custom_build_steps: ["RUN true"]
  inherit_base_image_packages: true
  skip_checks: true
  build_env: {X: y}
  host_credentials: [{host: example.org, secret_id: s}]
  requirements: {provider: uv-pip, requirements_file: tesseract_requirements.txt}
"""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "tesseract_api.py").write_text(MODULE)
    (folder / "tesseract_config.yaml").write_text(config)
    (folder / "data.txt").write_text("1")
    plan = images.plan_build(folder, changes={("build_config", "base_image"): "ubuntu:24.04"})
    assert plan.entry == "tesseract_api.py"
    settings = plan.settings
    assert (settings.base, settings.platform, settings.check) == (
        "ubuntu:24.04",
        "linux/arm64",
        False,
    )
    assert (settings.apt, settings.steps) == (("git",), ("RUN true",))
    assert settings.all_secrets == ("s",)
    assert "RUN ln -s /component /tesseract" in images.containerfile(plan)
    assert "--inherit" in images.containerfile(plan)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"component__yaml": "build: {unknown: 1}"}, "bad_project_file"),
        ({"component__yaml": "[1"}, "bad_project_file"),
        ({"component__yaml": "build: {package_data: [[nothing, /x]]}"}, "bad_project_file"),
        ({"component__yaml": "build: {requirements: missing.txt}"}, "bad_requirements"),
        ({"component__yaml": "build: {check_gradients: missing.json}"}, "payload_missing"),
        ({"component__yaml": "build: {python: two}"}, "bad_option"),
        ({"component__yaml": "name: 'Not A Name'"}, "bad_name"),
        (
            {"component__yaml": "build: {credentials: [{host: 'a b', secret_id: x}]}"},
            "bad_project_file",
        ),
        ({"requirements__txt": "./no-such-folder\n"}, "bad_requirements"),
        ({"pylock__toml": "x = 1\n"}, "bad_requirements"),
        ({"pyproject__toml": '[project]\ndynamic = ["dependencies"]\n'}, "bad_requirements"),
        ({"pyproject__toml": "x = \n"}, "bad_requirements"),
        ({"pyproject__toml": "project = 1\n"}, "bad_requirements"),
        ({"pyproject__toml": "# caf\u00e9\n".encode("latin-1")}, "bad_requirements"),
        ({"requirements__txt": "# caf\u00e9\n".encode("latin-1")}, "bad_requirements"),
        (
            {"tesseract_config__yaml": "name: a\nbuild_config: {requirements: {provider: pipx}}"},
            "bad_project_file",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, files, code):
    with pytest.raises(ChainruleError) as caught:
        images.plan_build(component(tmp_path / "heat", **files)).package_data
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("files", "place"),
    [
        ({"component_py": "x = 1\ndef broken(:\n"}, "component.py:2: SyntaxError"),
        ({"component_py": "return 3\n"}, "component.py:1: SyntaxError"),
        ({"component_py": "x = 1\0"}, "component.py"),
        ({"component_py": "x = '\u00e9'".encode("latin-1")}, "component.py"),
        (
            {"component_py": "import os, helpers\n", "helpers_py": "from .far import a\n",
             "far_py": "\n\na = = 1"},
            "far.py:3: SyntaxError",
        ),
    ],
)  # fmt: skip
def test_source_that_is_not_python_is_refused_before_anything_is_built(
    tmp_path, files, place, capsys
):
    folder = component(tmp_path / "heat", **files)
    with pytest.raises(DefinitionError) as caught:
        images.plan_build(folder)
    assert caught.value.code == "module_failed"
    assert place in str(caught.value)
    with pytest.raises(SystemExit) as ended:
        main(["image", "build", str(folder), "--engine", "podman"])
    assert ended.value.code == 1
    assert place in capsys.readouterr().err
    assert images.plan_build(folder, check=False).entry == "component.py"


@pytest.mark.parametrize(
    "text",
    [
        "type Pair[T] = tuple[T, T]\n",
        "def first[T](xs: list[T]) -> T: ...\n",
        "a = {}\nb = f'{a['x']}'\n",
        "try:\n    x = 1\nexcept A, B:\n    pass\n",
        "import unused_stub\nif x:\n    import perhaps\n",
    ],
)
def test_source_that_a_newer_python_takes_is_left_to_the_image(tmp_path, text):
    folder = component(tmp_path / "heat", component_py=text, perhaps_py="a = = 1")
    assert images.plan_build(folder).entry == "component.py"


def test_requirements_of_a_project_and_local_ones(tmp_path):
    local = tmp_path / "shared"
    local.mkdir()
    (local / "setup.py").write_text("")
    folder = component(
        tmp_path / "a", requirements__txt="scipy\n../shared[fast]\n--no-binary :none:\n"
    )
    plan = images.plan_build(folder)
    assert plan.requirements.text.splitlines()[1] == "./local_requirements/shared[fast]"
    context = images.write_context(plan, tmp_path / "context")
    assert (context / "local_requirements" / "shared" / "setup.py").exists()
    project = '[project]\nname = "x"\ndependencies = ["numpy>=2", "jax"]\n'
    plan = images.plan_build(component(tmp_path / "b", pyproject__toml=project), gpu=True)
    assert plan.requirements.text.splitlines() == ["numpy>=2", "jax", "jax[cuda12]"]
    assert plan.install_command("/build")[2].startswith("chainrule[serve,jax] @ ")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("numpy\njax>=0.7\n", True),
        ("jax[cpu]", True),
        ("tesseract-jax\njaxtyping\njax-cosmo\n", False),
        ('[[packages]]\nname = "jax"\n', True),
    ],
)
def test_packages_are_recognised_by_their_very_name(text, found):
    assert Requirements("requirements.txt", text, {}).names("jax") is found


def test_equal_folders_have_equal_hashes_and_secrets_stay_at_home(tmp_path):
    def digest(name, **files):
        folder = component(tmp_path / name / "heat", **files)
        (folder / ".env").write_text(name)
        context = images.write_context(images.plan_build(folder), tmp_path / name / "context")
        assert not list(context.rglob(".env"))
        return images.context_hash(context)

    assert digest("one") == digest("two")
    assert digest("three", other_py="x = 1\n") != digest("one_more")
    with pytest.raises(StorageError, match="not empty"):
        images.write_context(images.plan_build(tmp_path / "one" / "heat"), tmp_path / "one")


def test_the_wheel_can_be_installed_and_is_always_the_same(tmp_path):
    (tmp_path / "again").mkdir()
    wheel, again = write_wheel(tmp_path), write_wheel(tmp_path / "again")
    assert wheel.read_bytes() == again.read_bytes()
    target = tmp_path / "installed"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(target),
    ]
    subprocess.run([*command, str(wheel)], check=True, timeout=1200)
    assert (target / "chainrule" / "deploy" / "images" / "_scripts" / "install.sh").exists()
    assert not any("__pycache__" in name for name in zipfile.ZipFile(wheel).namelist())


def test_scripts_are_valid_shell():
    scripts = Path(images.__file__).parent / "_scripts"
    for script in scripts.glob("*.sh"):
        subprocess.run(["sh", "-n", str(script)], check=True)
        if shutil.which("shellcheck"):
            # One of them is read by others, whose variables it uses.
            options = ["--shell=sh", "--severity=warning", "--exclude=SC2034,SC2154"]
            subprocess.run(["shellcheck", *options, str(script)], check=True)


def test_apptainer_definition(tmp_path):
    yaml = "name: heat\ndescription: Warm\nbuild: {apt: [git], steps: ['RUN echo a', 'EXPOSE 1']}\n"
    plan = images.plan_build(component(tmp_path / "heat", component__yaml=yaml))
    text = images.apptainer_definition(plan)
    assert text.startswith("Bootstrap: docker\nFrom: docker.io/library/python:3.12-slim-bookworm\n")
    sections = [line[1:] for line in text.splitlines() if line.startswith("%")]
    expected = "files post environment labels runscript startscript test help"
    assert sections == expected.split()
    assert "sh /build/scripts/system.sh git" in text
    assert "    echo a\n" in text
    assert "# not carried over from the Containerfile: EXPOSE 1" in text
    post = text[text.index("%post") : text.index("%environment")]
    script = "\n".join(line.strip() for line in post.splitlines()[1:])
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_the_bill_of_materials_lists_what_is_installed():
    import numpy

    bill = bill_of_materials("heat", "1.0")
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    parts = {part["purl"]: part for part in bill["components"]}
    assert f"pkg:pypi/numpy@{numpy.__version__}" in parts
    assert bill == bill_of_materials("heat", "1.0")
    assert bill["serialNumber"] != bill_of_materials("heat", "1.1")["serialNumber"]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ([], ("heat:abc", "heat:latest", "heat:1.2.0")),
        ([":mine"], ("heat:abc", "heat:mine")),
        (["a.org:5000/t/warm:2"], ("a.org:5000/t/warm:abc", "a.org:5000/t/warm:2")),
    ],
)
def test_names_of_images(tmp_path, tags, expected):
    folder = component(tmp_path / "heat", component__yaml="name: heat\nversion: 1.2.0\n")
    assert _names(images.plan_build(folder), tags, "abc") == expected


def test_names_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match="cannot name"):
        _names(images.plan_build(component(tmp_path / "heat")), ["Not a name"], "abc")


def test_a_missing_secret_is_asked_for(tmp_path):
    folder = component(tmp_path / "heat", component__yaml="build: {secrets: [token]}\n")
    engine = images.Engine("podman", ("false",))
    plan = images.plan_build(folder)
    with pytest.raises(InputError, match="--secret id=token") as caught:
        images.build_image(plan, engine=engine)
    assert caught.value.code == "secret_missing"
    with pytest.raises(InputError, match="id=NAME,src=FILE"):
        images.build_image(plan, engine=engine, secrets=["token"])
    for source, why in (
        ("src=/no/file", "/no/file does not exist"),
        ("env=NO_VARIABLE", "not set"),
    ):
        with pytest.raises(InputError, match=why) as caught:
            images.build_image(plan, engine=engine, secrets=[f"id=token,{source}"])
        assert caught.value.code == "secret_missing"


def test_files_that_cannot_be_written_leave_no_folder(tmp_path):
    """After the mistake is mended, the same folder can be named again."""
    data = "build: {package_data: [[data.txt, /data.txt]]}\n"
    folder = component(tmp_path / "heat", component__yaml=data)
    with pytest.raises(DefinitionError, match=r"data\.txt, which does not exist"):
        images.write_context(images.plan_build(folder), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (folder / "data.txt").touch()
    images.write_context(images.plan_build(folder), tmp_path / "out")
    assert (tmp_path / "out" / "package_data" / "0").is_file()


def test_containers_that_are_not_there():
    engine = images.Engine("podman", ("false",))
    for ask in (images.container_log, images.stop_container):
        with pytest.raises(InputError, match="no container 'gone'") as caught:
            ask(engine, "gone")
        assert caught.value.code == "container_missing"


def test_generate_only_needs_no_engine(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CHAINRULE_ENGINE", raising=False)
    folder = component(tmp_path / "heat")
    with pytest.raises(SystemExit) as done:
        main(
            [
                "image",
                "build",
                str(folder),
                "--generate-only",
                "--build-dir",
                str(tmp_path / "out"),
                "--json",
            ]
        )
    assert done.value.code == 0
    written = json.loads(capsys.readouterr().out)
    assert {"Containerfile", "component.def"} <= {
        p.name for p in Path(written["context"]).iterdir()
    }
    with pytest.raises(CapabilityError, match="--generate-only"):
        images.find_engine()
    with pytest.raises(SystemExit) as done:
        main(["image", "build", str(tmp_path / "nothing"), "--generate-only"])
    assert done.value.code == 2


def test_engines(monkeypatch):
    monkeypatch.setenv("CHAINRULE_RUN_ARGS", "--annotation 'a b'")
    with pytest.raises(InputError, match="podman or docker"):
        images.find_engine(sys.executable)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    engine = images.find_engine("docker")
    assert (engine.kind, engine.run_args) == ("docker", ("--annotation", "a b"))
    monkeypatch.setenv("CHAINRULE_ENGINE", "/opt/podman-remote --connection x")
    assert images.find_engine().command == ("/opt/podman-remote", "--connection", "x")
    assert images.find_engine().kind == "podman"


def test_what_a_container_is_given(tmp_path):
    podman, docker = images.Engine("podman", ("podman",)), images.Engine("docker", ("docker",))
    options = images.RunOptions(
        gpus=[0, 1], memory="2g", volumes={tmp_path: "/data:rw"}, env={"A": "b c"}, network="lab"
    )
    given = {"inputs": "/input", "outputs": "/output"}
    rest = [
        "--volume",
        f"{tmp_path}:/data:rw",
        "--env",
        "A=b c",
        "--memory",
        "2g",
        "--network",
        "lab",
    ]
    gpus = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"]
    assert options.arguments(podman, **given) == gpus + rest
    assert options.arguments(docker, **given) == ["--gpus", '"device=0,1"', *rest]
    everything = images.RunOptions(gpus="all").arguments(docker, **given)
    assert everything == ["--gpus", "all"]
    files = images.RunOptions(input_path=tmp_path, output_path=tmp_path / "new")
    arguments = files.arguments(docker, **given)
    assert f"{tmp_path}:/input:ro" in arguments
    assert f"{tmp_path / 'new'}:/output:rw" in arguments
    assert "--user" in arguments
    for wrong in ({"volumes": ["/:x"]}, {"volumes": ["/nowhere/at/all:/x"]}):
        with pytest.raises(InputError):
            images.RunOptions(**wrong).arguments(podman, **given)
    with pytest.raises(InputError, match="cannot be called"):
        images.RunOptions(network="none")


def test_build_failures_are_told_apart():
    lines = ["uv says no", "chainrule-build-failed: requirements"]
    engine = images.Engine(
        "podman", ("sh", "-c", f"printf '%s\\n' {shlex.join(lines)}; exit 3", "sh")
    )
    from chainrule.deploy.images._build import _stream

    shown = []
    with pytest.raises(DefinitionError, match="requirements cannot be installed") as caught:
        _stream(engine, ["build"], shown.append, "The build failed")
    assert shown == lines
    assert caught.value.details == {"step": "requirements", "exit_code": 3}


def test_lines_come_while_the_engine_is_at_work(tmp_path):
    seen = tmp_path / "seen"
    script = f"echo one; while [ ! -e {seen} ]; do sleep 0.01; done; echo two"
    engine = images.Engine("podman", ("timeout", "30", "sh", "-c", script, "sh"))
    assert engine.stream([], lambda line: seen.touch()) == (0, ["one", "two"])


def test_a_base_image_that_cannot_be_had(tmp_path):
    plan = images.plan_build(component(tmp_path / "heat"))
    script = 'echo "no route to $2"; exit 1'
    engine = images.Engine("podman", ("sh", "-c", script, "sh"))
    with pytest.raises(
        CapabilityError, match=r"no route to docker\.io/library/python:3\.12"
    ) as caught:
        images.build_image(plan, engine=engine)
    assert caught.value.code == "base_missing"
    assert "--base" in caught.value.message


def test_a_context_inside_the_component_is_no_part_of_it(tmp_path, monkeypatch):
    folder = component(tmp_path / "heat")
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as done:
        main(["image", "build", ".", "--generate-only"])
    assert done.value.code == 0
    (first,) = (path for path in folder.iterdir() if path.name.endswith("-image"))
    copied = sorted(path.name for path in (first / "component").iterdir())
    assert copied == sorted(path.name for path in folder.iterdir() if path != first)
    with pytest.raises(SystemExit) as done:
        main(["image", "build", ".", "--generate-only", "--build-dir", "deep/below/out"])
    assert done.value.code == 0
    second = folder / "deep" / "below" / "out" / "component"
    assert {path.name for path in second.iterdir()} == {*copied, "deep"}
    assert not list(second.rglob("Containerfile"))
