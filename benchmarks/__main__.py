"""`make bench`: run every benchmark and print one table."""

import argparse
import importlib
import pkgutil
import sys

import benchmarks
from benchmarks._harness import show


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", help="run just these, e.g. frames")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a bar is not met")
    options = parser.parse_args()
    names = [m.name for m in pkgutil.iter_modules(benchmarks.__path__)]
    names = [n for n in names if n.startswith("bench_")]
    if options.only:
        names = [n for n in names if n.removeprefix("bench_") in options.only]
    rows = []
    for name in names:
        print(f"… {name}", file=sys.stderr, flush=True)
        rows += importlib.import_module(f"benchmarks.{name}").run()
    show(rows)
    return int(options.strict and any(row.met is False for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
