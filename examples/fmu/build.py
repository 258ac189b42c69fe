"""Build an FMU from a C file and a model description, with gcc and the headers that FMPy has.

    build_fmu("drain3", folder)     drain3.c and drain3.xml → folder/drain3.fmu

FMPy wants every function of the standard. Those that the C file does not have become stubs that return an
error (3).
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent


def build_fmu(
    name: str,
    folder: Path | str,
    *,
    sources: Path = HERE,
    replace: Mapping[str, str] | None = None,
    target: str | None = None,
) -> Path:
    """The FMU.

    Args:
        name: of the C file and the model description.
        folder: where the FMU is written.
        sources: folder of both files.
        replace: text of the model description → other text, for variants.
        target: name of the FMU; `name` by default.
    """
    import fmpy

    headers = Path(fmpy.__file__).parent / "c-code"
    description = (sources / f"{name}.xml").read_text()
    version = 3 if 'fmiVersion="3' in description else 2
    for old, new in (replace or {}).items():
        assert old in description, old
        description = description.replace(old, new)
    with tempfile.TemporaryDirectory() as scratch:
        stubs = Path(scratch, "stubs.c")
        stubs.write_text(_stubs(headers, version))
        library = Path(scratch, f"{name}.so")
        command = [
            "gcc",
            "-O1",
            "-shared",
            "-fPIC",
            f"-I{headers}",
            sources / f"{name}.c",
            stubs,
        ]
        subprocess.run([*command, "-o", library], check=True)
        place = "x86_64-linux" if version == 3 else "linux64"
        found = Path(folder, f"{target or name}.fmu")
        with zipfile.ZipFile(found, "w") as archive:
            archive.writestr("modelDescription.xml", description)
            archive.write(library, f"binaries/{place}/{name}.so")
    return found


def _stubs(headers: Path, version: int) -> str:
    """A function that returns an error for each function of the standard; those of the C file replace it."""
    declared = (headers / f"fmi{version}Functions.h").read_text()
    names = re.findall(
        rf"FMI{version}_Export\s+fmi{version}\w+TYPE\s+(fmi{version}\w+);",
        declared,
    )
    return "\n".join(
        f"__attribute__((weak)) int {name}(void) {{ return 3; }}"
        for name in names
    )
