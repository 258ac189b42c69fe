"""Removes a container when its owner is gone: a small process of its own, run as a script.

python -I _watchdog.py FOLDER CONTAINER ENGINE…

It waits for the end of its standard input. The owner holds the other end and never writes: it closes it when
it is done, and the operating system closes it when the owner dies, be it by SIGKILL. So there is one way for
a container to end, whatever happens to its owner.
"""

import shutil
import subprocess
import sys

_GRACE_S = "5"


def main(folder: str, container: str, *engine: str) -> None:
    """Wait, then stop and remove the container and what belongs to it."""
    while sys.stdin.buffer.read(1):
        pass
    for last_word in (["stop", "--time", _GRACE_S, container], ["rm", "--force", container]):
        subprocess.run([*engine, *last_word], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
