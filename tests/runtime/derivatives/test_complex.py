"""Complex outputs of real inputs, and real outputs of complex ones: the Jacobian from one of its products.

The closed forms are y = exp(ix) + w(x), whose derivative is complex, and r = |z|², for which
dr = Re(2 conj(z) dz): in the pairing Re(Σ u z) its Jacobian is 2 conj(z).
"""

import numpy as np
import pytest
from pydantic import BaseModel

import chainrule
from chainrule.runtime import Array, Complex128, Differentiable, Float64
from chainrule.runtime.derivatives import (
    finite_difference_jacobian,
    finite_difference_jvp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    vjp_from_jacobian,
)

INPUTS = {"x": np.array([0.3, 1.2]), "z": np.array([1 + 2j, -0.5j])}
BLOCKS = {
    "y": {"x": np.diag(1j * np.exp(1j * INPUTS["x"])), "z": np.diag(2 * INPUTS["z"])},
    "r": {"x": np.diag(2 * INPUTS["x"]), "z": np.diag(2 * np.conj(INPUTS["z"]))},
}
OUTPUTS = ("r", "y")


def apply(inputs):
    x, z = inputs["x"], inputs["z"]
    return {"y": np.exp(1j * x) + z**2, "r": x**2 + np.abs(z) ** 2}


def jvp(inputs, jvp_inputs, jvp_outputs, tangent_vector, batched=False):
    along = {
        out: sum(tangent_vector[path] @ BLOCKS[out][path].T for path in jvp_inputs)
        for out in jvp_outputs
    }
    return {out: each.real if out == "r" else each for out, each in along.items()}


def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector, batched=False):
    back = {
        path: sum(cotangent_vector[out] @ BLOCKS[out][path] for out in vjp_outputs)
        for path in vjp_inputs
    }
    return {path: each.real if path == "x" else each for path, each in back.items()}


@pytest.mark.parametrize("sparsity", [None, "diagonal"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("inputs", [{"x"}, {"z"}, {"x", "z"}])
@pytest.mark.parametrize("outputs", [{"y"}, {"r"}, {"r", "y"}])
@pytest.mark.parametrize("product", ["jvp", "vjp"])
def test_the_jacobian_from_a_product(product, outputs, inputs, batched, sparsity):
    pattern = None if sparsity is None else {o: dict.fromkeys(inputs, sparsity) for o in outputs}
    options = {"batched": batched, "sparsity": pattern}
    if product == "jvp":
        found = jacobian_from_jvp(jvp, INPUTS, inputs, outputs, **options)
    else:
        found = jacobian_from_vjp(vjp, apply, INPUTS, inputs, outputs, **options)
    for out in outputs:
        for path in inputs:
            block = found[out][path] if sparsity is None else found[out][path].todense()
            np.testing.assert_allclose(block, BLOCKS[out][path], atol=1e-15)
            assert np.iscomplexobj(block) == np.iscomplexobj(BLOCKS[out][path])


def test_the_other_product_follows():
    """Re⟨u, J v⟩ = Re⟨Jᵀ u, v⟩ for a real v, with both products made of the Jacobian of the one."""

    def jacobian(inputs, jac_inputs, jac_outputs):
        return jacobian_from_vjp(vjp, apply, inputs, jac_inputs, jac_outputs)

    v, u = {"x": np.array([1.0, -2.0])}, {"y": np.array([0.5 - 1j, 2j])}
    pushed = jvp_from_jacobian(jacobian, INPUTS, {"x"}, {"y"}, v)["y"]
    pulled = vjp_from_jacobian(jacobian, INPUTS, {"x"}, {"y"}, u)["x"]
    np.testing.assert_allclose(pushed, BLOCKS["y"]["x"] @ v["x"])
    assert np.sum(u["y"] * pushed).real == pytest.approx(np.sum(pulled * v["x"]))


X = np.linspace(0.3, 1.2, 30)
MIXED = {"y": np.diag(np.cos(X)), "z": np.diag(2j * X)}


def mixed(inputs):
    x = inputs["x"]
    return {"y": np.sin(x), "z": 1j * x**2}


DIAGONAL = {path: {"x": "diagonal"} for path in MIXED}


@pytest.mark.parametrize("options", [{}, {"sparsity": DIAGONAL}, {"sparsity": "detect"}])
def test_differences_of_a_real_output_beside_a_complex_one_are_real(options):
    found = finite_difference_jacobian(mixed, {"x": X}, {"x"}, {"y", "z"}, **options)
    for path, block in MIXED.items():
        each = found[path]["x"] if not options else found[path]["x"].todense()
        np.testing.assert_allclose(each, block, atol=1e-6)
        assert np.iscomplexobj(each) == np.iscomplexobj(block)
    along = finite_difference_jvp(mixed, {"x": X}, {"x"}, {"y", "z"}, {"x": np.ones(30)})
    for path, block in MIXED.items():
        np.testing.assert_allclose(along[path], block.sum(1), atol=1e-6)
        assert np.iscomplexobj(along[path]) == np.iscomplexobj(block)


def test_random_directions_keep_a_real_output_real():
    directions = {"algorithm": "stochastic", "num_samples": 12, "seed": 0}
    found = finite_difference_jacobian(mixed, {"x": X}, {"x"}, {"y", "z"}, **directions)
    assert found["y"]["x"].dtype == np.float64
    assert found["z"]["x"].dtype == np.complex128


class Waves(BaseModel):
    y: Differentiable[Array[(None,), Float64]]
    z: Differentiable[Array[(None,), Complex128]]


@chainrule.component(framework="numpy", derivatives="finite")
def waves(x: Differentiable[Array[(None,), Float64]]) -> Waves:
    return Waves(**mixed({"x": x}))


def test_a_component_with_a_real_and_a_complex_output_has_differences():
    """The product was refused: the real output had come back as complex numbers."""
    along = waves.jacobian_vector_product({"x": X}, ["x"], ["y", "z"], {"x": np.ones(30)})
    np.testing.assert_allclose(along["y"], np.cos(X), atol=1e-6)
    np.testing.assert_allclose(along["z"], 2j * X, atol=1e-6)
    blocks = waves.jacobian({"x": X}, ["x"], ["y", "z"])
    np.testing.assert_allclose(blocks["y"]["x"], MIXED["y"], atol=1e-6)
    assert blocks["y"]["x"].dtype == np.float64
