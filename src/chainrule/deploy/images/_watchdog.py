"""Removes a container when its owner ends: a small process of its own, run as a script.

    python -I _watchdog.py FOLDER CONTAINER ENGINE…

It waits for the end of its standard input. The owner has the other end of the pipe and never writes. It
closes the pipe when it is done, and the operating system closes it when the owner dies, even by SIGKILL. So
a container always ends in the same way.
"""

import shutil
import subprocess
import sys

_GRACE_S = "5"


def main(folder: str, container: str, *engine: str) -> None:
    """Wait, then stop and remove the container and its folder."""
    while sys.stdin.buffer.read(1):
        pass
    for command in (["stop", "--time", _GRACE_S, container], ["rm", "--force", container]):
        subprocess.run([*engine, *command], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
