"""`python -m chainrule.compat program.py …`: run a program, unchanged, with the ancestors' names installed.

python -m chainrule.compat -m package.module …    the same for a module

Names whose real package is present keep meaning that package, as with `install`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from chainrule.compat import install

__all__ = ["main"]

_USAGE = "usage: python -m chainrule.compat (program.py | -m module) [argument …]\n"


def main(arguments: list[str]) -> None:
    """Run what the arguments name, as `python` would."""
    is_module = arguments[:1] == ["-m"]
    given = arguments[is_module:]
    if not given or given[0] in ("-h", "--help"):
        sys.stderr.write(_USAGE)
        raise SystemExit(0 if given else 2)
    install()
    sys.argv[:] = given
    if is_module:
        runpy.run_module(given[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(given[0]).resolve().parent)
        runpy.run_path(given[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
