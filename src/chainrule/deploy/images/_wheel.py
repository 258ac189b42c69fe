"""A wheel of the Chainrule that is running, so that an image has exactly this one.

The wheel is written here from the installed files: it works for an editable checkout as for an installed
package, needs neither a build tool nor a network, and its bytes depend on nothing but the files.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import chainrule

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can express
_METADATA = ("METADATA", "entry_points.txt")
_TAGS = "Wheel-Version: 1.0\nGenerator: chainrule\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path) -> Path:
    """Write `chainrule-<version>-py3-none-any.whl` into a folder."""
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
