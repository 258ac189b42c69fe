"""Run a command line many times from one process: every case in a fork of its own, in a folder of its own.

python run_cases.py MODULE CASES.json FOLDER
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    """Run the cases and leave `stdout`, `stderr` and `code` of each in its folder."""
    module, cases, folder = sys.argv[1:]
    entry = importlib.import_module(module).main
    for case in json.loads(Path(cases).read_text()):
        child = os.fork()
        if child == 0:
            _run(entry, case, Path(folder) / case["name"])
        os.waitpid(child, 0)


def _run(entry, case, folder) -> None:
    work = folder / "work"
    work.mkdir(parents=True)
    os.chdir(work)
    for name, text in case.get("files", {}).items():
        Path(name).write_text(text)
    os.environ.update(case.get("env", {}))
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
    sys.argv = ["tesseract-runtime", *case["arguments"]]
    code = 0
    try:
        entry()
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    (folder / "code").write_text(str(code))
    os._exit(0)


if __name__ == "__main__":
    main()
