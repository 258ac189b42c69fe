"""The build context: a folder with everything that an image is made from, and its hash.

Containerfile, component.def    the recipe for podman and docker, and for Apptainer
scripts/                        what both recipes run
chainrule-….whl                 the Chainrule that is running
requirements.txt, …             packages of the component, local ones included
component/                      the component's folder, without hidden files and caches
package_data/                   files for other places in the image
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import chainrule
from chainrule._content_store import hash_parts
from chainrule._errors import StorageError
from chainrule.deploy.images._plan import BuildPlan
from chainrule.deploy.images._recipes import apptainer_definition, containerfile

_SCRIPTS = Path(__file__).parent / "_scripts"
# Hidden files belong to tools and users (.git, .venv, .env with passwords), not to an image.
_IGNORED_NAMES = shutil.ignore_patterns(".*", "__pycache__", "*.pyc")
_RECIPES = ("Containerfile", "component.def")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can express
_METADATA = ("METADATA", "entry_points.txt")
_TAGS = "Wheel-Version: 1.0\nGenerator: chainrule\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _left_out(folder: str, names: list[str]) -> set[str]:
    """What of a folder stays out of an image: hidden files, caches, and build contexts.

    `chainrule image build . --generate-only` writes a context into the component's own folder; that
    context, or one of an earlier build, must not become a part of the component.
    """
    contexts = {name for name in names if _is_context(Path(folder, name))}
    return set(_IGNORED_NAMES(folder, names)) | contexts


def _is_context(folder: Path) -> bool:
    return all((folder / recipe).is_file() for recipe in _RECIPES)


def write_context(plan: BuildPlan, folder: Path) -> Path:
    """Write the build context of a plan into an empty or new folder.

    Raises:
        StorageError: the folder is not empty (`folder_not_empty`), or cannot be written
            (`storage_failed`); a folder that could not be written whole is removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StorageError(
                f"{folder} is not empty; name another folder for the build files.",
                code="folder_not_empty",
            )
        try:
            _write(plan, folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"Cannot write the build files: {error}.") from error
    return folder


def _write(plan: BuildPlan, folder: Path) -> None:
    # Written first, because these files mark the folder as a context.
    (folder / "Containerfile").write_text(containerfile(plan), encoding="utf-8")
    (folder / "component.def").write_text(apptainer_definition(plan), encoding="utf-8")
    shutil.copytree(_SCRIPTS, folder / "scripts", ignore=_left_out)
    shutil.copytree(plan.folder, folder / "component", ignore=_left_out)
    for number, (source, _) in enumerate(plan.package_data):
        target = folder / "package_data" / str(number)
        if source.is_dir():
            shutil.copytree(source, target, ignore=_left_out)
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(source, target)
    plan.requirements.write(folder)
    write_wheel(folder)
    credentials = plan.settings.credentials
    lines = [f"{c.host} {c.username} {c.secret_id}\n" for c in credentials]
    (folder / "credentials").write_text("".join(lines))
    _normalise(folder)


def _normalise(folder: Path) -> None:
    """Make everything readable for the image's user, with the same permissions on every machine."""
    for path in folder.rglob("*"):
        is_open = path.is_dir() or path.stat().st_mode & 0o100
        path.chmod(0o755 if is_open else 0o644)


def context_hash(folder: Path) -> str:
    """A hash over names, permissions and contents; equal contexts give the same image name."""
    return hash_parts(_parts(folder))


def _parts(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            mode = path.stat().st_mode & 0o777
            yield f"{path.relative_to(folder).as_posix()} {mode:o}", path.read_bytes()


def write_wheel(folder: Path) -> Path:
    """Write `chainrule-<version>-py3-none-any.whl` into a folder: the Chainrule that is running.

    It is made from the installed files. So it works for an editable checkout as for an installed package,
    needs neither a build tool nor a network, and its bytes depend only on the files.
    """
    installed = distribution("chainrule")
    wheel = folder / f"chainrule-{installed.version}-py3-none-any.whl"
    info = f"chainrule-{installed.version}.dist-info"
    record = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _contents(installed, info):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record.append(f"{name},sha256={digest.decode()},{len(content)}")
        lines = "\n".join([*record, f"{info}/RECORD,,", ""])
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", _EPOCH), lines)
    return wheel


def _contents(installed: Distribution, info: str) -> Iterator[tuple[str, bytes]]:
    package = Path(chainrule.__file__).parent
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"chainrule/{file.relative_to(package).as_posix()}", file.read_bytes()
    yield f"{info}/WHEEL", _TAGS.encode()
    for name in _METADATA:
        text = installed.read_text(name)
        if text is not None:
            yield f"{info}/{name}", text.encode()
