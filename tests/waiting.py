"""Waiting for what happens in other threads and processes, with a limit that no loaded machine reaches."""

import time

LIMIT_S = 600.0


def wait_until(condition, what="what the test waits for", *, limit_s=LIMIT_S):
    """Ask again and again until a condition holds; fail where it never does.

    Args:
        condition: a function without arguments.
        what: is missing then, for the message.
        limit_s: seconds after which it is given up.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {limit_s:g} s: {what}"
        time.sleep(0.005)
