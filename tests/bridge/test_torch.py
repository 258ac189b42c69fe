"""The torch twin: every transformation of `torch.func` and autograd against the same function in torch."""

from pathlib import Path

import jax
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule.bridge import PrecisionWarning
from chainrule.errors import CapabilityError, InputError
from chainrule.runtime import (
    Array,
    Complex128,
    Differentiable,
    Float64,
    Int64,
    component,
    load_component,
)

torch = pytest.importorskip("torch")
func = torch.func
# Raised inside torch's own forward mode.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

HERE = Path(__file__).parent
X = torch.tensor([0.3, -0.7, 1.1], dtype=torch.float64)
A = torch.tensor(1.7, dtype=torch.float64)
XS, AS = torch.stack([X, 2 * X, X - 1]), torch.stack([A, 2 * A, -A])


def apply(component, **inputs):
    from chainrule.torch import apply_component

    return apply_component(component, inputs)


@pytest.fixture(scope="module")
def ours():
    numpy_component = load_component(HERE / "components" / "numpy_component.py")
    return lambda x, a: apply(numpy_component, x=x, a=a)


def reference(x, a):
    return {"y": a * torch.sin(x) + x.sum() * x, "s": a * (x * x).sum()}


def scalar(f):
    return lambda x, a: f(x, a)["s"] + (f(x, a)["y"] ** 2).sum()


def vector(f):
    return lambda x, a: f(x, a)["y"]


def backward(f):
    x, a = X.clone().requires_grad_(), A.clone().requires_grad_()
    scalar(f)(x, a).backward()
    return x.grad, a.grad


TRANSFORMATIONS = {
    "eager": lambda f: f(X, A),
    "backward": backward,
    "grad": lambda f: func.grad(scalar(f), (0, 1))(X, A),
    "vjp": lambda f: func.vjp(vector(f), X, A)[1](X),
    "jvp": lambda f: func.jvp(vector(f), (X, A), (X, A)),
    "jvp of one": lambda f: func.jvp(lambda x: f(x, A)["s"], (X,), (X,)),
    "jacrev": lambda f: func.jacrev(vector(f), (0, 1))(X, A),
    "jacfwd": lambda f: func.jacfwd(vector(f), (0, 1))(X, A),
    "vmap": lambda f: func.vmap(f)(XS, AS),
    "vmap with axes": lambda f: func.vmap(vector(f), (1, None), 1)(XS.T, A),
    "vmap of vmap": lambda f: func.vmap(func.vmap(f, (None, 0)), (0, None))(XS, AS),
    "vmap of grad": lambda f: func.vmap(func.grad(scalar(f)))(XS, AS),
    "grad of vmap": lambda f: func.grad(
        lambda x, a: func.vmap(scalar(f), (0, None))(x, a).sum(), (0, 1)
    )(XS, A),
    "float32 in": lambda f: func.grad(lambda x: f(x.double(), A)["s"])(X.float()),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformation(name, ours):
    torch.testing.assert_close(TRANSFORMATIONS[name](ours), TRANSFORMATIONS[name](reference))


def test_gradcheck_in_both_modes(ours):
    x, a = X.clone().requires_grad_(), A.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, a: tuple(ours(x, a).values()), (x, a), check_forward_ad=True
    )


def test_other_dtypes_are_converted_and_gradients_converted_back(ours):
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = X.to(dtype).requires_grad_()
        ours(x, A)["s"].backward()
        assert x.grad.dtype == dtype
        torch.testing.assert_close(x.grad.double(), 2 * A * X, rtol=0.02, atol=0.02)


def test_views_that_are_negated_later(ours):
    z = torch.complex(X, X).conj()
    torch.testing.assert_close(ours(z.imag, A)["s"], A * (X * X).sum())


def test_a_dtype_that_numpy_does_not_have_is_refused(ours):
    with pytest.raises(InputError, match="float8_e4m3fn") as caught:
        ours(X.to(torch.float8_e4m3fn), A)
    assert (caught.value.code, caught.value.path) == ("not_an_array", "x")


def test_a_call_does_not_become_a_constant_of_a_recorded_program(ours):
    with pytest.raises(CapabilityError, match=r"torch\.func\.jvp") as caught:
        func.linearize(lambda x: ours(x, A)["y"], X)
    assert caught.value.code == "not_recordable"


def test_second_order_says_what_is_missing(ours):
    with pytest.raises(CapabilityError, match="hessian_vector_product"):
        func.hessian(lambda x: ours(x, A)["s"])(X)


class WithSecondOrder:
    """x ↦ x³, with the second-derivative endpoint."""

    def __init__(self, component):
        self._component = component
        self.available_endpoints = [*component.available_endpoints, "hessian_vector_product"]

    def __getattr__(self, name):
        return getattr(self._component, name)

    def hessian_vector_product(
        self, inputs, hvp_inputs, hvp_outputs, cotangent_vector, tangent_vector
    ):
        u, v = cotangent_vector["result"], tangent_vector["x"]
        return {"x": 6 * inputs["x"] * u * v}


def cubic():
    @component(derivatives="finite")
    def cube(x: Differentiable[Array[("n",), Float64]]) -> Differentiable[Array[("n",), Float64]]:
        return x**3

    return WithSecondOrder(cube)


def test_second_order_through_hessian_vector_product():
    c = cubic()
    hessian = func.hessian(lambda x: apply(c, x=x)["result"].sum())(X)
    torch.testing.assert_close(hessian, torch.diag(6 * X))
    x = X.clone().requires_grad_()
    (first,) = torch.autograd.grad(apply(c, x=x)["result"].sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * X)


def test_complex_gradients_follow_torch():
    @component(framework="jax")
    def square(
        z: Differentiable[Array[("n",), Complex128]],
    ) -> Differentiable[Array[("n",), Complex128]]:
        return (1 + 2j) * z**2

    start = torch.tensor([0.3 + 0.4j, -1.0 + 0.2j], dtype=torch.complex128)
    z, w = start.clone().requires_grad_(), start.clone().requires_grad_()
    apply(square, z=z)["result"].abs().sum().backward()
    ((1 + 2j) * w**2).abs().sum().backward()
    torch.testing.assert_close(z.grad, w.grad)


def test_what_is_not_differentiable():
    @component(derivatives="finite")
    def scale(
        x: Differentiable[Array[("n",), Float64]], weight: Array[(), Float64]
    ) -> Differentiable[Array[("n",), Float64]]:
        return weight * x

    x, weight = X.clone().requires_grad_(), A.clone().requires_grad_()
    with pytest.raises(InputError, match="weight") as caught:
        apply(scale, x=x, weight=weight)["result"].sum().backward()
    assert caught.value.code == "input_not_differentiable"
    apply(scale, x=x, weight=weight.detach())["result"].sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), float(A), dtype=torch.float64))


class Outputs(BaseModel):
    y: Differentiable[Array[("n",), Float64]]
    error: Array[(), Float64]
    steps: Array[(), Int64]


def test_an_output_that_is_not_differentiable_is_constant_forward_and_an_error_backward():
    @component(derivatives="finite")
    def solve(x: Differentiable[Array[("n",), Float64]]) -> Outputs:
        return Outputs(y=x**2, error=x.sum(), steps=3)

    x = X.clone().requires_grad_()
    out = apply(solve, x=x)
    (out["y"].sum() + out["error"].detach() + out["steps"]).backward()
    torch.testing.assert_close(x.grad, 2 * X)
    for loss in (lambda o: o["error"], lambda o: o["y"].sum() + o["error"]):
        with pytest.raises(CapabilityError, match=r"`error` f64\[\].*detach") as caught:
            func.grad(lambda x, loss=loss: loss(apply(solve, x=x)))(X)
        assert (caught.value.code, caught.value.path) == ("output_not_differentiable", "error")
    _, tangents = func.jvp(lambda x: apply(solve, x=x), (X,), (X,))
    torch.testing.assert_close(tangents["y"], 2 * X * X)
    assert (tangents["error"], tangents["steps"]) == (0, 0)


def test_batching_that_torch_keeps_to_itself_is_told_so(ours):
    for strategy in ("reverse-mode", "forward-mode"):
        with pytest.raises(CapabilityError, match=r"torch\.func\.jacrev") as caught:
            torch.autograd.functional.jacobian(
                lambda x: ours(x, A)["y"], X, vectorize=True, strategy=strategy
            )
        assert caught.value.code == "not_batchable"


def test_without_x64_a_component_in_jax_is_said_to_compute_in_32_bits():
    @component(framework="jax")
    def square(
        x: Differentiable[Array[("n",), Float64]],
    ) -> Differentiable[Array[("n",), Float64]]:
        return x * x

    with jax.enable_x64(False), pytest.warns(PrecisionWarning, match="64 bits") as caught:
        apply(square, x=X)
    assert caught[0].filename == __file__
    with jax.enable_x64(True):
        apply(square, x=X)


def test_numpy_inputs_and_static_fields():
    scaling = load_component(HERE / "components" / "scaling.py")
    out = apply(scaling, x=np.ones(3), factor=3, values={"b.c": X})
    torch.testing.assert_close(out["y"], torch.full((3,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(out["values"]["b.c"], 3 * X)


def test_importing_it_does_not_import_jax():
    import subprocess
    import sys

    source = "import sys, chainrule.torch; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0
