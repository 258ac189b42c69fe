"""Minimise the cost of a component whose evaluations are jobs of a server.

    python optimise.py http://heat.example:8000 checkpoint.json

Kill it at any time, and start it again, here or on another machine: no evaluation runs twice.

- The key of a job is made of its inputs. Where the server knows the key, it gives the job that it has, which
  may be over, or still run.
- What is finished is in the checkpoint too, so that it is not asked for again. The checkpoint may be missing
  or old: the server has the rest, for as long as it keeps results (`--job-retention`).
- The optimiser asks for the same points in the same order when it begins at the same point. So it comes to
  where it was without an evaluation, and goes on.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from chainrule import Component
from chainrule.errors import ChainruleError

START = [1.0, 1.0, 1.0]


class Evaluations:
    """Evaluations of a component, each of which runs once.

    Args:
        component: a handle to its server.
        checkpoint: file of those that are finished.
    """

    def __init__(self, component: Component, checkpoint: Path) -> None:
        self._component = component
        self._checkpoint = checkpoint
        self._done: dict[str, list[float]] = {}
        if checkpoint.exists():
            self._done = json.loads(checkpoint.read_text())

    def cost(self, x: np.ndarray) -> float:
        def read(answer):
            return [float(answer["cost"])]

        return self._evaluate(x, read, "apply", {"stiffness": x})[0]

    def gradient(self, x: np.ndarray) -> np.ndarray:
        def read(answer):
            return np.asarray(answer["stiffness"]).tolist()

        asked = ({"stiffness": x}, ["stiffness"], ["cost"], {"cost": 1.0})
        return np.array(
            self._evaluate(x, read, "vector_jacobian_product", *asked)
        )

    def _evaluate(self, x, read, endpoint, *asked):
        content = json.dumps([endpoint, x.tolist()])
        key = hashlib.sha256(content.encode()).hexdigest()
        if key not in self._done:
            self._done[key] = read(self._run(key, endpoint, *asked))
            self._write()
        return self._done[key]

    def _run(self, key, endpoint, *asked):
        # A job that was running when its server ended has failed, and a new one needs a new key.
        for attempt in range(5):
            job = self._component.submit(
                endpoint, *asked, idempotency_key=f"{key}-{attempt}"
            )
            try:
                return job.result()
            except ChainruleError as error:
                if error.code != "server_stopped":
                    raise
        raise RuntimeError(
            "Five servers ended while they ran this evaluation."
        )

    def _write(self) -> None:
        """Replace the checkpoint by one that is complete."""
        partial = self._checkpoint.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(self._done))
        partial.replace(self._checkpoint)


def main() -> None:
    url, checkpoint = sys.argv[1], Path(sys.argv[2])
    token = os.environ.get("CHAINRULE_TOKEN")
    with Component.from_url(url, token=token) as component:
        evaluations = Evaluations(component, checkpoint)
        found = minimize(
            evaluations.cost,
            START,
            jac=evaluations.gradient,
            method="L-BFGS-B",
            bounds=[(0.1, 10.0)] * 3,
        )
    print(json.dumps({"x": found.x.tolist(), "cost": found.fun}))


if __name__ == "__main__":
    main()
