"""`@component`: schemas from annotations, endpoints from the framework."""

import dataclasses
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

import chainrule
from chainrule.errors import CapabilityError, ComponentError, DefinitionError, InputError
from chainrule.runtime import Array, Differentiable, Float32, Float64, component

Vector = Differentiable[Array[("n",), Float64]]
Number = Differentiable[Float64]


class Pair(NamedTuple):
    first: Number
    second: Vector


class Report(TypedDict):
    first: Number
    second: Vector


@dataclasses.dataclass
class Record:
    first: Number
    second: Vector


class Model(BaseModel):
    first: Number
    second: Vector


class Parameters(BaseModel):
    scale: Number
    shift: Vector


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def test_the_decorated_function_still_is_the_function():
    @chainrule.component
    def add(a: float, b: float = 2.0) -> float:
        """Add two numbers.

        Args:
            a: one of them,
                on two lines.
            b: the other.

        Returns:
            The sum.
        """
        return a + b

    assert add(1, 2) == 3
    assert add.apply({"a": 1.0}) == {"result": 3.0}
    assert add.name == "add"
    assert add.description == "Add two numbers."
    assert add.input_schema.model_fields["a"].description == "one of them, on two lines."
    assert add.input_schema.model_fields["b"].description == "the other."
    assert repr(add) == "<component add(a: number, b: number) → result: number; no derivatives>"


@pytest.mark.parametrize("kind", [Pair, Report, Record, Model])
def test_returns_with_names(kind):
    def both(x: Vector):
        return kind(first=x.sum(), second=2 * x)

    both.__annotations__["return"] = kind
    result = component(both).apply({"x": [1.0, 2.0]})
    assert list(result) == ["first", "second"]
    assert result["first"] == 3.0
    np.testing.assert_array_equal(result["second"], [2.0, 4.0])


def test_tuples_get_numbered_fields():
    @component
    def both(x: Vector) -> tuple[Number, Vector]:
        return x.sum(), x

    assert list(both.apply({"x": [1.0]})) == ["result_0", "result_1"]
    assert list(both.differentiable_outputs) == ["result_0", "result_1"]


def test_a_function_of_one_model_takes_it_as_its_inputs():
    @component
    def scaled(parameters: Parameters) -> Model:
        return Model(first=parameters.scale, second=parameters.scale * parameters.shift)

    assert scaled.input_schema is Parameters
    assert scaled.output_schema is Model
    np.testing.assert_array_equal(scaled.apply({"scale": 2, "shift": [3]})["second"], [6.0])
    assert "Apply_InputSchema" in scaled.openapi_schema["components"]["schemas"]


def test_positional_only_and_keyword_only_arguments():
    @component
    def odd(a: int, /, b: int, *, c: int) -> list[int]:
        return [a, b, c]

    assert odd.apply({"a": 1, "b": 2, "c": 3}) == {"result": [1, 2, 3]}


@pytest.mark.parametrize("framework", ["numpy", "jax", "torch"])
@pytest.mark.parametrize("annotation", [Number, Number | None])
def test_a_forgotten_return_is_the_components_fault_in_every_endpoint(framework, annotation):
    def forget(x: Number):
        x + 1

    forget.__annotations__["return"] = annotation
    options = {"derivatives": "finite"} if framework == "numpy" else {}
    made = component(forget, framework=framework, **options)
    if annotation is not Number:
        assert made.apply({"x": 1.0})["result"] is None
        return
    for ask in (made.apply, made.jacobian):
        with pytest.raises(ComponentError, match="apply returned None"):
            ask({"x": 1.0})


@pytest.mark.parametrize(
    ("annotation", "returned", "expected"),
    [
        (tuple[Number, Vector], 1.0, "a float; .* says a tuple of 2 values"),
        (tuple[Number, Vector], np.ones(2), "f64.2.; .* says a tuple of 2 values"),
        (tuple[Number, Vector], (1.0, np.ones(1), 2.0), "says a tuple of 2 values"),
        (tuple[Number, Vector], None, "end with `return`"),
        (Pair, (1.0, np.ones(1)), r"says Pair\(first=…, second=…\)"),
        (Record, {"first": 1.0, "second": np.ones(1)}, r"says Record\(first=…, second=…\)"),
        (Record, None, "end with `return`"),
    ],
)
def test_a_result_of_another_kind_than_the_return_annotation(annotation, returned, expected):
    def give(x: Number):
        return returned

    give.__annotations__["return"] = annotation
    with pytest.raises(ComponentError, match=expected) as caught:
        component(give).apply({"x": 1.0})
    assert caught.value.code == "bad_output"


@pytest.mark.parametrize("annotation", [np.ndarray, np.float64, jax.Array, "np.ndarray"])
@pytest.mark.parametrize("name", ["x", "return"])
def test_classes_of_arrays_do_not_describe_an_array(name, annotation):
    def double(x: Number) -> Number:
        return 2 * x

    double.__annotations__[name] = annotation
    with pytest.raises(DefinitionError, match=r"`Array\[\.\.\., None\]` for any array") as caught:
        component(double)
    assert caught.value.code == "bad_signature"


@pytest.mark.parametrize(
    ("annotation", "fragment"),
    [
        (Differentiable, "Differentiable needs the array that it marks"),
        ("Array[3, Float64]", r"a shape is a tuple .* Float64\]\. "),
    ],
)
def test_annotations_that_are_no_declaration(annotation, fragment):
    def double(x) -> Number:
        return 2 * x

    double.__annotations__["x"] = annotation
    with pytest.raises(DefinitionError, match=fragment):
        component(double)


@pytest.mark.parametrize(
    ("function", "fragment"),
    [
        (lambda x: x, "no annotation"),
        (eval("lambda *args: args"), "takes anything"),
        (eval("lambda **args: args"), r"The argument \*\*args takes"),
    ],
)
def test_functions_without_annotations(function, fragment):
    with pytest.raises(DefinitionError, match=fragment) as caught:
        component(function)
    assert caught.value.code == "bad_signature"


def test_functions_without_a_return_annotation_or_with_unknown_types():
    def nothing(x: int): ...

    def unknown(x: "Nowhere") -> int: ...

    for function in (nothing, unknown):
        with pytest.raises(DefinitionError) as caught:
            component(function)
        assert caught.value.code == "bad_signature"


def test_unknown_frameworks():
    def one(x: int) -> int: ...

    with pytest.raises(DefinitionError, match="cobol"):
        component(framework="cobol")(one)


def test_a_numpy_function_has_no_derivatives_unless_asked():
    def square(x: Vector) -> Vector:
        return x**2

    plain = component(square)
    assert {c.status for n, c in plain.capabilities.items() if "jac" in n} == {"absent"}
    finite = component(derivatives="finite")(square)
    assert str(finite.capabilities["jacobian"]) == "derived (finite differences)"
    x = np.array([1.0, 3.0])
    blocks = finite.jacobian({"x": x}, ["x"], ["result"])
    np.testing.assert_allclose(blocks["result"]["x"], np.diag(2 * x), rtol=1e-6, atol=1e-9)
    tuned = component(derivatives={"algorithm": "forward", "eps": 1e-7})(square)
    np.testing.assert_allclose(
        tuned.vector_jacobian_product({"x": x}, ["x"], ["result"], {"result": [1.0, 1.0]})["x"],
        2 * x,
        rtol=1e-5,
    )


def inverse(current: Number) -> Number:
    return 1.0 / current


OPTIONS = [
    "finite",
    {},
    {"algorithm": "central"},
    {"algorithm": "forward"},
    {"algorithm": "richardson"},
    {"algorithm": "complex_step"},
    {"seed": 3, "show_progress": False},
    {"eps": {"current": "auto"}},
]


@pytest.mark.parametrize("derivatives", OPTIONS, ids=str)
def test_the_step_is_automatic_whatever_else_is_chosen(derivatives):
    # A step of 1e-4 would go from 8e-6 to the other side of the pole.
    finite = component(derivatives=derivatives)(inverse)
    at, paths = {"current": 8e-6}, (["current"], ["result"])
    expected = pytest.approx(-1 / 8e-6**2, rel=1e-4)
    assert finite.jacobian(at, *paths)["result"]["current"] == expected
    assert finite.vector_jacobian_product(at, *paths, {"result": 1.0})["current"] == expected
    assert finite.jacobian_vector_product(at, *paths, {"current": 1.0})["result"] == expected


def test_options_that_only_some_endpoints_have():
    from scipy.sparse import eye_array

    def twice(x: Vector, k: Number) -> Vector:
        return k * x**2

    for options in (
        {"sparsity": "detect"},
        {"algorithm": "stochastic", "num_samples": 50, "seed": 1},
    ):
        finite = component(derivatives=options)(twice)
        at = {"x": [1.0, 2.0], "k": 3.0}
        for paths in (["x"], ["k"], ["x", "k"]):
            tangent = {path: np.ones_like(at[path]) for path in paths}
            pushed = finite.jacobian_vector_product(at, paths, ["result"], tangent)["result"]
            x, k = np.array(at["x"]), at["k"]
            expected = ("x" in paths) * 2 * k * x + ("k" in paths) * x**2
            np.testing.assert_allclose(pushed, expected, rtol=1e-6)
    sparse = component(derivatives={"sparsity": {"result": {"x": eye_array(2), "k": None}}})(twice)
    np.testing.assert_allclose(
        sparse.jacobian(at, ["x"], ["result"])["result"]["x"].todense(),
        np.diag([6.0, 12.0]),
        rtol=1e-6,
    )


def test_a_step_for_some_paths():
    seen = set()

    def product(a: Number, b: Number) -> Number:
        seen.add((float(a), float(b)))
        return a * b

    finite = component(derivatives={"eps": {"a": 0.25}})(product)
    at = {"a": 2.0, "b": 3.0}
    for paths in (["a"], ["b"], ["a", "b"]):
        blocks = finite.jacobian(at, paths, ["result"])["result"]
        expected = {"a": 3.0, "b": 2.0}
        assert {p: float(v) for p, v in blocks.items()} == pytest.approx(
            {p: expected[p] for p in paths}, rel=1e-8
        )
    assert (2.25, 3.0) in seen
    assert (1.75, 3.0) in seen
    assert all(abs(b - 3.0) < 1e-3 for _, b in seen)


@pytest.mark.parametrize(
    ("derivatives", "fragment"),
    [
        ("fd", 'derivatives="finite"'),
        ("central", r'derivatives=\{"algorithm": "central"\}'),
        (True, "found True"),
        (["finite"], "found a list"),
        ({"algorithmn": "central"}, "Did you mean 'algorithm'"),
        ({"step": 1.0}, "algorithm, eps, num_samples, seed, sparsity, executor, show_progress"),
        ({"algorithm": "richardsen"}, "Did you mean 'richardson'"),
        ({"algorithm": 3}, "one of central, forward"),
        ({"eps": "small"}, 'a positive number, .*or "auto"'),
        ({"eps": -1.0}, "positive number"),
        ({"eps": {"z": 1.0}}, "differentiable inputs are current"),
        ({"num_samples": 0}, "1 or more"),
        ({"seed": "x"}, "an integer or None"),
        ({"sparsity": "find"}, '"detect" or a pattern'),
        ({"sparsity": 3}, '"detect" or a pattern'),
        ({"sparsity": {"result": {"current": [[1]]}}}, '"detect" or a pattern'),
        ({"executor": 4}, "submit"),
        ({"show_progress": 1}, "True or False"),
    ],
    ids=str,
)
def test_derivatives_are_checked_when_they_are_declared(derivatives, fragment):
    with pytest.raises(DefinitionError, match=fragment) as caught:
        component(derivatives=derivatives)(inverse)
    assert caught.value.code == "bad_derivatives"


def test_derivatives_of_what_is_not_marked():
    def plain(x: float) -> float:
        return x

    def only_in(x: Number) -> float:
        return x

    def only_out(x: float) -> Number:
        return x

    for function, side in ((plain, "input"), (only_in, "output"), (only_out, "input")):
        with pytest.raises(DefinitionError, match=f"no {side} of.*Differentiable") as caught:
            component(derivatives="finite")(function)
        assert caught.value.code == "nothing_differentiable"


@component(framework="jax", batching="elementwise", version="1.0.0")
def wave(x: Vector, parameters: Parameters, mode: str = "sin") -> tuple[Vector, Number]:
    """A wave and its energy."""
    y = parameters.scale * getattr(jnp, mode)(x) + parameters.shift
    return y, jnp.sum(y**2)


def wave_inputs():
    x = np.array([0.5, 1.5])
    return {"x": x, "parameters": {"scale": 2.0, "shift": np.array([1.0, -1.0])}}


def test_jax_gives_every_endpoint_for_free():
    assert str(wave.capabilities["apply"]) == "native"
    for endpoint in (
        "jacobian",
        "jacobian_vector_product",
        "vector_jacobian_product",
        "abstract_eval",
    ):
        assert str(wave.capabilities[endpoint]) == "derived (jax)"
    inputs = wave_inputs()
    x, shift = inputs["x"], inputs["parameters"]["shift"]
    y = 2 * np.sin(x) + shift
    result = wave.apply(inputs)
    np.testing.assert_allclose(result["result_0"], y, rtol=1e-12)
    blocks = wave.jacobian(inputs, ["x", "parameters.scale"], ["result_0", "result_1"])
    np.testing.assert_allclose(blocks["result_0"]["x"], np.diag(2 * np.cos(x)), rtol=1e-12)
    np.testing.assert_allclose(blocks["result_0"]["parameters.scale"], np.sin(x), rtol=1e-12)
    np.testing.assert_allclose(blocks["result_1"]["x"], 4 * y * np.cos(x), rtol=1e-12)
    tangent = wave.jacobian_vector_product(inputs, ["x"], ["result_1"], {"x": [1.0, 0.0]})
    np.testing.assert_allclose(tangent["result_1"], 4 * y[0] * np.cos(x[0]), rtol=1e-12)
    pulled = wave.vector_jacobian_product(
        inputs, ["parameters.shift"], ["result_1"], {"result_1": 1.0}
    )
    np.testing.assert_allclose(pulled["parameters.shift"], 2 * y, rtol=1e-12)
    shapes = wave.abstract_eval(
        {
            "x": {"shape": [5], "dtype": "float64"},
            "parameters": {
                "scale": {"shape": [], "dtype": "float64"},
                "shift": {"shape": [5], "dtype": "float64"},
            },
        }
    )
    assert shapes == {
        "result_0": {"shape": [5], "dtype": "float64"},
        "result_1": {"shape": [], "dtype": "float64"},
    }


def test_the_jax_function_can_be_traced():
    def loss(x):
        return wave.jax_function({**wave_inputs(), "x": x, "mode": "cos"})["result_1"]

    x = jnp.array([0.5, 1.5])
    y = 2 * jnp.cos(x) + jnp.array([1.0, -1.0])
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), -4 * y * jnp.sin(x), rtol=1e-12)
    assert wave.jax_function(wave_inputs())["result_0"].shape == (2,)  # defaults are filled in
    assert wave.batching == "elementwise"
    assert wave.version == "1.0.0"


def test_jax_functions_of_models():
    @component(framework="jax")
    def scaled(parameters: Parameters) -> Model:
        return Model(first=parameters.scale**2, second=parameters.scale * parameters.shift)

    inputs = {"scale": 2.0, "shift": [1.0, 2.0]}
    np.testing.assert_array_equal(scaled.apply(inputs)["second"], [2.0, 4.0])
    blocks = scaled.jacobian(inputs, ["scale"], ["first", "second"])
    assert blocks["first"]["scale"] == 4.0
    np.testing.assert_array_equal(blocks["second"]["scale"], [1.0, 2.0])
    tree = {"shift": jnp.ones(2)}
    gradient = jax.grad(lambda scale: scaled.jax_function({"scale": scale, **tree})["first"])
    assert gradient(3.0) == 6.0


def test_a_jitted_function_counts_as_jax():
    @component
    @jax.jit
    def square(x: Vector) -> Vector:
        return x**2

    assert str(square.capabilities["jacobian"]) == "derived (jax)"
    assert square.jax_function is not None
    np.testing.assert_allclose(square.apply({"x": [3.0]})["result"], [9.0])


def test_a_jax_function_that_cannot_be_traced_is_the_components_fault():
    @component(framework="jax")
    def branch(x: Number) -> Number:
        return x if x > 0 else -x

    with pytest.raises(ComponentError, match="TracerBoolConversionError"):
        branch.apply({"x": 1.0})


LOOKS = {
    "if": lambda x: x if x > 0 else -x,
    "int": lambda x: x * len(range(int(x))),
    "float": lambda x: x * float(x),
    "numpy": lambda x: x * np.sin(x),
    "mask": lambda x: x * x[x > 0].sum(),
}


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("endpoint", ["apply", "jacobian"])
def test_a_jax_function_that_looks_at_values_hears_where_and_what_to_do(name, endpoint):
    look = LOOKS[name]

    @component(framework="jax")
    def looks(x: Number) -> Number:
        return look(x)

    with pytest.raises(ComponentError) as caught:
        getattr(looks, endpoint)({"x": 1.0})
    message = caught.value.message
    assert f"{__file__}:{look.__code__.co_firstlineno} (<lambda>)" in message
    assert "jnp.where" in message
    assert 'derivatives="finite"' in message


def test_the_ways_out_for_a_function_that_looks_at_values():
    @component(framework="jax")
    def constant(x: Number, scale: float, steps: int) -> Number:
        return x * (1 if scale > 0 else -1) * len(range(steps))

    assert constant.apply({"x": 2.0, "scale": -1.0, "steps": 3})["result"] == -6.0
    assert constant.jacobian({"x": 2.0, "scale": 1.0, "steps": 3})["result"]["x"] == 3.0

    @component(derivatives="finite")
    def plain(x: Number) -> Number:
        return jnp.sin(x) if x > 0 else -x

    assert plain.jacobian({"x": -2.0})["result"]["x"] == pytest.approx(-1.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torch_gives_every_endpoint_for_free():
    torch = pytest.importorskip("torch")

    @component(framework="torch")
    def energy(x: Differentiable[Array[("n",), Float32]]) -> Differentiable[Float32]:
        return 0.5 * torch.sum(x**2)

    assert energy.apply({"x": [1.0, 2.0]})["result"] == 2.5
    x = {"x": np.float32([1.0, 2.0])}
    pulled = energy.vector_jacobian_product(x, ["x"], ["result"], {"result": 2.0})
    np.testing.assert_allclose(pulled["x"], [2.0, 4.0])
    np.testing.assert_allclose(energy.jacobian(x, ["x"], ["result"])["result"]["x"], [1.0, 2.0])
    assert energy.jacobian_vector_product(x, ["x"], ["result"], {"x": [0.0, 1.0]})["result"] == 2.0
    shapes = energy.abstract_eval({"x": {"shape": [2], "dtype": "float32"}})
    assert shapes == {"result": {"shape": [], "dtype": "float32"}}


def test_frameworks_that_are_not_installed(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "chainrule.runtime.torch_recipes", raising=False)

    def energy(x: Number) -> Number: ...

    with pytest.raises(CapabilityError, match=r"chainrule\[torch\]") as caught:
        component(framework="torch")(energy)
    assert caught.value.code == "missing_dependency"


def test_content_hash_of_functions():
    def make(offset, factor=1):
        def shifted(x: float, f: float = factor) -> float:
            return x + offset

        return component(shifted)

    assert make(1).content_hash == make(1).content_hash
    assert make(1).content_hash != make(2).content_hash
    assert make(1).content_hash != make(1, factor=2).content_hash

    def other(x: float, f: float = 1) -> float:
        return x - 1

    assert component(other).content_hash != make(1).content_hash
    unpicklable = make(lambda: 1)
    assert unpicklable.content_hash != make(lambda: 1).content_hash


def test_named_dimensions_give_abstract_evaluation():
    @component
    def double(x: Vector, y: Array[("m", 3), Float32]) -> Array[("m", "n"), Float32]:
        return np.zeros((len(y), len(x)))

    assert str(double.capabilities["abstract_eval"]) == "derived (schema)"
    inputs = {"x": {"shape": [4], "dtype": "float64"}, "y": {"shape": [2, 3], "dtype": "float32"}}
    assert double.abstract_eval(inputs) == {"result": {"shape": [2, 4], "dtype": "float32"}}

    @component
    def free(x: Vector) -> Array[(None,), Float64]:
        return x[x > 0]

    assert free.capabilities["abstract_eval"].status == "absent"


def test_abstract_evaluation_of_nested_outputs():
    class Field(BaseModel):
        values: Array[("n", 2), Float64]

    class Solution(BaseModel):
        field: Field
        energy: Float64

    @component
    def solve(x: Vector) -> Solution:
        return Solution(field=Field(values=np.zeros((len(x), 2))), energy=1.0)

    found = solve.abstract_eval({"x": {"shape": [4], "dtype": "float64"}})
    assert found == {
        "field": {"values": {"shape": [4, 2], "dtype": "float64"}},
        "energy": {"shape": [], "dtype": "float64"},
    }


def test_bad_inputs_of_functions_are_the_callers_fault():
    with pytest.raises(InputError):
        wave.apply({"x": [1.0]})


def test_the_jacobian_endpoint_cuts_what_where_does_not_choose():
    @component(framework="jax")
    def root(x: Vector) -> Vector:
        return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 0.0)), 0.0)

    found = root.jacobian({"x": np.array([0.0, 4.0])}, ["x"], ["result"])["result"]["x"]
    np.testing.assert_array_equal(found, [[0.0, 0.0], [0.0, 0.25]])
