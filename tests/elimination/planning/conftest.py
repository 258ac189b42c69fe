"""Components that count what they are asked."""

from collections import Counter
from itertools import pairwise

import jax
import numpy as np
import pytest

from chainrule import from_callable


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


class Counted:
    """Makes components y = A sin(x) of any size; `asked` counts (name, request)."""

    def __init__(self):
        self.asked = Counter()
        self._random = np.random.default_rng(0)

    def component(self, name, n, m, *, jvp=True, vjp=True, hvp=False, **options):
        matrix = self._random.normal(size=(m, n))

        def count(request):
            self.asked[name, request] += 1

        def apply(x):
            count("apply")
            return matrix @ np.sin(x)

        def push(primals, tangents):
            count("jvp")
            return matrix @ (np.cos(primals[0]) * tangents[0])

        def pull(primals, cotangent):
            count("vjp")
            return (np.cos(primals[0]) * (matrix.T @ cotangent),)

        def curve(primals, cotangent, tangents):
            count("hvp")
            return (-np.sin(primals[0]) * (matrix.T @ cotangent) * tangents[0],)

        return from_callable(
            apply,
            jvp=push if jvp else None,
            vjp=pull if vjp else None,
            hvp=curve if hvp else None,
            abstract=lambda x: jax.ShapeDtypeStruct((m,), x.dtype),
            name=name,
            **options,
        )

    def chain(self, *sizes):
        """Components one after the other, as one function."""
        parts = [self.component(f"c{k}", n, m) for k, (n, m) in enumerate(pairwise(sizes))]

        def pipeline(x):
            for part in parts:
                x = part(x)
            return x

        return pipeline

    @property
    def products(self):
        return sum(n for (_, request), n in self.asked.items() if request != "apply")

    def check(self, plan):
        """What was asked is what the plan says, and every site was applied once."""
        for request in plan.requests:
            kinds = {"columns": "jvp", "rows": "vjp", "jacobian": "jacobian"}
            assert self.asked[request.site, kinds[request.way]] == request.products
            assert self.asked[request.site, "apply"] == 1
        assert self.products == plan.products


@pytest.fixture
def counted():
    return Counted()
