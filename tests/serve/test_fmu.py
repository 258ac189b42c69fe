"""`chainrule serve model.fmu`: an FMU in worker processes."""

import numpy as np
import pytest

from chainrule import Component
from chainrule.errors import ChainruleError


@pytest.fixture(scope="module")
def served(start_server, fmus):
    return start_server(components=str(fmus("drain3")), workers=1, port=0)


def test_simulation_and_gradient(served):
    with Component.from_url(served.url) as drain:
        found = drain.apply({"times": [0.0, 0.5], "inputs": {"time": [0.0], "u": [2.0]}})
        assert found["outputs"]["y"][0] == 14.0
        gradient = drain.vector_jacobian_product(
            {"times": [0.0]}, ["start.x"], ["outputs.y"], {"outputs.y": [1.0]}
        )
        np.testing.assert_array_equal(gradient["start.x"], np.ones(3))


def test_an_fmu_that_aborts_costs_a_worker(served):
    with Component.from_url(served.url) as drain:
        with pytest.raises(ChainruleError) as caught:
            drain.apply({"parameters": {"mode": 2}})
        assert caught.value.code == "worker_crashed"
        assert drain.apply({"times": [0.0]})["outputs"]["y"].tolist() == [7.0]


def test_a_simulation_as_a_job_with_progress_that_is_cancelled(served, wait_until):
    with Component.from_url(served.url) as drain:
        job = drain.submit("apply", {"times": np.linspace(0, 1000, 1_000_000)})
        wait_until(lambda: (job.fraction or 0) > 0)
        job.cancel()
        with pytest.raises(ChainruleError) as caught:
            job.result()
        assert caught.value.code == "cancelled"
        assert drain.apply({"times": [0.0]})["outputs"]["y"].tolist() == [7.0]
