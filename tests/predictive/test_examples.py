"""The examples at small size: both ways of training reach what is stated, on data they have not seen.

The full size is `python -m examples.predictive`; what it reaches is in docs/how-to/predictive-coding.md.
"""

from pathlib import Path

import numpy as np
import pytest
from examples.predictive import __main__ as program
from examples.predictive import _tasks

from chainrule import Component
from chainrule.runtime import load_component
from chainrule.runtime.testing import check_gradients


@pytest.mark.parametrize(
    ("task", "epochs", "least"),
    [
        (_tasks.two_moons, 25, 0.95),
        (_tasks.deep_classifier, 8, 0.93),
        (_tasks.convolutional_classifier, 5, 0.88),
    ],
)
def test_classifiers_reach_the_accuracy_of_backpropagation(task, epochs, least):
    result = task(epochs)
    assert result.untrained < 0.7
    assert result.backpropagation >= least
    assert result.predictive >= least


def test_autoencoder_reconstructs():
    result = _tasks.autoencoder(epochs=10)
    assert max(result.predictive, result.backpropagation) < 0.2 * result.untrained


def test_served_component_can_be_the_generative_layer():
    component = load_component(Path(program.COMPONENT))
    inputs = {"code": np.array([0.3, -0.4], np.float32).tolist()}
    assert check_gradients(
        component, {"inputs": inputs}, endpoints=["vector_jacobian_product"]
    ).passed
    with program.served(program.COMPONENT) as url, Component.from_url(url) as served:
        result = _tasks.component_as_decoder(served, epochs=8)
    assert max(result.predictive, result.backpropagation) < 0.3 * result.untrained
