"""Run programs of an ancestor in a fresh process, on our packages or on the real ones.

python run_programs.py here|there NAMES FOLDER PROGRAM…
"""

import pickle
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np


def plain(tree):
    """Results without classes of any package."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain(item) for item in tree]
    return np.asarray(tree) if hasattr(tree, "__array__") else tree


def main() -> None:
    """Keep what every program's `main(folder)` returns in `FOLDER/results.pickle`."""
    side, names, folder, *programs = sys.argv[1:]
    if side == "here":
        from chainrule.compat import Installation

        Installation(names.split(","))
    warnings.simplefilter("ignore")
    results = {}
    for program in programs:
        own = Path(folder) / Path(program).stem
        own.mkdir(parents=True)
        results[Path(program).name] = plain(runpy.run_path(program)["main"](own))
    (Path(folder) / "results.pickle").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
