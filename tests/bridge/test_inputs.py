"""What can be handed to a component: the columns of the test matrix that are about data."""

import copy
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import BaseModel

from chainrule import apply_component, component, component_errors, from_callable
from chainrule.bridge import PrecisionWarning
from chainrule.errors import CapabilityError, DefinitionError, InputError
from chainrule.runtime import (
    Array,
    BFloat16,
    Bool,
    Complex128,
    Differentiable,
    Float32,
    Float64,
    Int32,
    Int64,
    load_component,
)

X = np.array([0.3, -0.7, 1.1])
Vector = Differentiable[Array[("n",), Float64]]
HERE = Path(__file__).parent


def scaled(**fields):
    """The component `y = factor * x`, with further fields."""
    return apply_component(load_component(HERE / "components" / "scaling.py"), fields)


def test_dicts_with_any_keys_lists_and_optional_fields():
    values = {"a": X, "b.c": 2 * X, "with {braces}": X + 1, "0": X}

    def loss(values, items):
        out = scaled(x=X, values=values, items=items)
        return sum(v.sum() for v in out["values"].values()) + sum(v.sum() for v in out["items"])

    on_dict, on_list = jax.jit(jax.grad(loss, argnums=(0, 1)))(values, [X, 2 * X])
    assert set(on_dict) == set(values)
    for gradient in (*on_dict.values(), *on_list):
        np.testing.assert_array_equal(gradient, np.full(3, 2.0))


def test_missing_optional_fields_and_none():
    for fields in ({}, {"offset": None}):
        np.testing.assert_allclose(jax.jit(lambda x, f=fields: scaled(x=x, **f)["y"])(X), 2 * X)
    shifted = jax.jit(jax.grad(lambda o: scaled(x=X, offset=o)["y"].sum()))(np.ones(3))
    np.testing.assert_array_equal(shifted, np.ones(3))


def test_static_fields_are_part_of_the_program():
    for factor in (2, 3, 5):
        np.testing.assert_allclose(
            jax.jit(lambda x, k=factor: scaled(x=x, factor=k)["y"])(X), factor * X
        )


def test_python_numbers_and_lists_stand_for_arrays():
    found = jax.jit(lambda y: scaled(x=[0.5, 1.5], y=y)["y"])(X)
    np.testing.assert_allclose(found, [1.0, 3.0])
    traced = jax.grad(lambda a: scaled(x=[a, 2 * a])["y"].sum())(1.0)
    np.testing.assert_allclose(traced, 6.0)


def test_outputs_that_are_not_arrays():
    eager = scaled(x=X)
    assert (eager["label"], eager["count"]) == ("three", 3)

    @jax.jit
    def f(x):
        out = scaled(x=x)
        assert out["label"] == "abstract"  # what abstract_eval says; text cannot come out of `jit`
        return out["count"]

    assert f(X) == 3  # a number is a value, not what abstract_eval said


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16", "int32", "bool"])
def test_narrower_dtypes_are_widened_and_gradients_come_back_narrow(dtype):
    x = jnp.asarray([0, 1, 1]).astype(dtype)
    y = jax.jit(lambda x: scaled(x=x)["y"])(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, 2.0 * np.asarray(x, "float64"))
    if dtype not in ("int32", "bool"):
        gradient = jax.jit(jax.grad(lambda x: scaled(x=x)["y"].sum()))(x)
        assert gradient.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(gradient, "float64"), np.full(3, 2.0))


@component
def several(
    flag: Array[(), Bool], count: Array[("n",), Int32], z: Differentiable[Array[("n",), Complex128]],
    h: Differentiable[Array[("n",), BFloat16]], empty: Array[(0,), Float32],
) -> Differentiable[Array[("n",), Complex128]]:  # fmt: skip
    assert empty.shape == (0,)
    return (z * count if flag else z) + np.asarray(h, "float32")


def test_boolean_integer_complex_bfloat16_and_empty():
    arguments = {
        "flag": np.array(True),
        "count": np.array([1, 2], "int32"),
        "z": np.array([1 + 2j, 3j]),
        "h": jnp.array([0.5, 1.0], "bfloat16"),
        "empty": np.zeros(0, "float32"),
    }
    found = jax.jit(lambda **a: apply_component(several, a)["result"])(**arguments)
    np.testing.assert_allclose(found, [1.5 + 2j, 1 + 6j])


def test_plain_number_fields():
    """A plain field has no array behind it: concrete scalars become numbers, traced ones are an error."""
    found = jax.jit(lambda x: scaled(x=x, plain=np.float32(0.5))["y"])(X)
    np.testing.assert_allclose(found, 2 * X + 0.5)
    with pytest.raises(InputError, match="static_argnames") as caught:
        jax.jit(lambda x, t: scaled(x=x, plain=t)["y"])(X, 0.5)
    assert (caught.value.code, caught.value.path) == ("traced_plain_input", "plain")


def test_without_x64_inputs_are_widened_and_outputs_narrowed():
    with jax.enable_x64(False):
        x = X.astype("float32")
        with pytest.warns(PrecisionWarning, match="`y` float64 as float32"):
            y = jax.jit(lambda x: scaled(x=x)["y"])(x)
        assert y.dtype == np.float32
        with pytest.warns(PrecisionWarning):
            gradient = jax.jit(jax.grad(lambda x: scaled(x=x)["y"].sum()))(x)
        assert gradient.dtype == np.float32
        np.testing.assert_array_equal(gradient, np.full(3, 2.0, "float32"))


def test_callables_take_nested_arguments():
    def f(tree, mode):
        assert mode == "add"
        return {"sum": tree["a"] + tree["b"][0], "parts": [tree["a"], 1.0]}

    g = from_callable(
        f,
        vjp=lambda p, u: ({"a": u["sum"] + u["parts"][0], "b": [u["sum"]]}, None),
        abstract=lambda tree, mode: {"sum": tree["a"], "parts": [tree["a"], 0.0]},
    )
    tree: Any = {"a": X, "b": [2 * X]}
    out = jax.jit(lambda t: g(t, "add"))(tree)
    np.testing.assert_allclose(out["sum"], 3 * X)
    np.testing.assert_allclose(out["parts"][1], 1.0)
    gradient = jax.grad(lambda t: (g(t, "add")["sum"] * X).sum())(tree)
    np.testing.assert_allclose([gradient["a"], gradient["b"][0]], [X, X])


def test_a_name_that_is_no_input_is_told_so_inside_and_outside_of_jit():
    @component(framework="numpy")
    def same(x: Array[(None,), Float64]) -> Array[(None,), Float64]:
        return x

    def run(x):
        return apply_component(same, {"xx": x})

    with pytest.raises(InputError, match="has no input `xx`; it has"):
        jax.jit(run)(np.ones(3))
    with pytest.raises(InputError, match="no such field as 'xx'"):
        run(np.ones(3))


@pytest.mark.parametrize("wrong", ["hello", [1.0, "x"], [[1.0], [1.0, 2.0]]])
def test_what_is_no_array_is_told_so(wrong):
    @component(framework="numpy")
    def same(x: Array[(None,), Float64]) -> Array[(None,), Float64]:
        return x

    with pytest.raises(InputError, match="`x` of same has to be an array") as caught:
        apply_component(same, {"x": wrong})
    assert caught.value.code == "not_an_array"
    assert caught.value.path == "x"


@pytest.mark.parametrize("bare", [np.ones(3), [1.0, 2.0], 1.0, None], ids=str)
def test_inputs_without_names_are_told_the_names(bare):
    @component(framework="numpy")
    def total(profile: Array[("n",), Float64]) -> Float64:
        return np.sum(profile)

    with pytest.raises(InputError, match=r"by name; found (a|nothing).*\{'profile': …\}") as caught:
        apply_component(total, bare)
    assert caught.value.code == "invalid_input"


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_a_static_zero_has_a_sign(framework):
    module = {"numpy": np, "jax": jnp}[framework]

    @component(framework=framework)
    def with_sign(x: Vector, of: float) -> Vector:
        return module.copysign(x, of)

    for sign in (0.0, -0.0):
        found = jax.jit(lambda x, s=sign: apply_component(with_sign, {"x": x, "of": s}))(X)
        np.testing.assert_array_equal(found["result"], np.copysign(X, sign))


@pytest.mark.parametrize("kind", ["text", "key"])
def test_arrays_of_other_things_than_numbers_are_refused(kind):
    wrong = np.array(["a"]) if kind == "text" else jax.random.key(0)
    advice = "JAX does not have" if kind == "text" else "key_data"
    f = from_callable(lambda x, other: x, abstract=lambda x, other: x)
    for call in (f, lambda x, other: jax.jit(lambda x: f(x, other))(x)):
        with pytest.raises(InputError, match=advice) as caught:
            call(X, wrong)
        assert (caught.value.code, caught.value.path) == ("not_an_array", "[1]")


@jax.tree_util.register_dataclass
@dataclass
class Parameters:
    weight: Any


@dataclass
class Unregistered:
    weight: Any


@pytest.mark.parametrize("kind", [Parameters, Unregistered])
def test_traced_values_in_objects_are_found(kind):
    f = from_callable(lambda p: 2 * p.weight, abstract=lambda p: p.weight)
    np.testing.assert_array_equal(f(kind(X)), 2 * X)
    with pytest.raises(InputError, match=kind.__name__) as caught:
        jax.jit(lambda x: f(kind(x)))(X)
    assert caught.value.code == "hidden_tracer"


class Blade(BaseModel):
    chord: Vector
    profile: str = "flat"


class BladeTuple(NamedTuple):
    chord: Any
    profile: str = "curved"


class BladeModule(eqx.Module):
    chord: Any
    profile: str = eqx.field(default="curved", static=True)


@jax.tree_util.register_dataclass
@dataclass
class Rotor:
    x: Any
    blade: Any
    spares: Any


class RotorTuple(NamedTuple):
    x: Any
    blade: Any
    spares: Any


def lifted(module):
    @component(framework="jax" if module is jnp else "numpy")
    def lift(x: Vector, blade: Blade, spares: list[Blade]) -> Vector:
        assert blade.profile == spares[0].profile == "curved"
        return module.sin(x) * blade.chord + spares[0].chord

    return lift


@pytest.mark.parametrize("blade", [BladeTuple, BladeModule, Blade.model_construct, OrderedDict])
@pytest.mark.parametrize("rotor", [Rotor, RotorTuple, OrderedDict])
def test_records_stand_for_their_fields(rotor, blade):
    def run(component, x, chord):
        blades = [blade(chord=c, profile="curved") for c in (chord, 2 * chord)]
        inputs = rotor(x=x, blade=blades[0], spares=blades[1:])
        return apply_component(component, inputs, infer_by_evaluation=True)["result"]

    on_host, inlined = lifted(np), lifted(jnp)
    wanted = np.sin(X) * 3 + 6
    for found in (
        run(on_host, X, 3 + 0 * X),
        jax.jit(run, static_argnums=0)(on_host, X, 3 + 0 * X),
    ):
        np.testing.assert_allclose(found, wanted)
    gradient = jax.grad(lambda c: run(inlined, X, c).sum())(3 + 0 * X)
    np.testing.assert_allclose(gradient, np.sin(X) + 2)


def test_records_can_be_what_a_gradient_is_taken_of():
    inputs = Rotor(X, BladeModule(3 + 0 * X), [BladeModule(X)])
    gradient = jax.grad(lambda r: apply_component(lifted(jnp), r)["result"].sum())(inputs)
    np.testing.assert_allclose(gradient.blade.chord, np.sin(X))


class Span(NamedTuple):
    low: Any
    high: Any


class Open(BaseModel, extra="allow"):
    a: Any


def test_extra_fields_of_a_model_are_inputs():
    f = from_callable(lambda m, x: m["a"] + 10 * m["b"] + 100 * x, abstract=lambda m, x: x)
    np.testing.assert_allclose(f(Open(a=X, b=2 * X), 3 * X), 321 * X)


def test_named_tuples_are_tuples_where_the_schema_says_so():
    @component(framework="jax")
    def width(span: tuple[Vector, Vector]) -> Vector:
        return span[1] - span[0]

    found = jax.jit(lambda x: apply_component(width, {"span": Span(x, 3 * x)})["result"])(X)
    np.testing.assert_allclose(found, 2 * X)


def test_without_x64_narrowed_results_are_told_outside_of_jit_too():
    with jax.enable_x64(False), pytest.warns(PrecisionWarning, match="`y` float64 as float32"):
        y = scaled(x=X.astype("float32"))["y"]
    assert y.dtype == np.float32


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"]
)
def test_without_x64_the_warning_points_to_the_callers_line(transform):
    wide = from_callable(
        np.float64, jvp=lambda x, v: v[0], abstract=jax.ShapeDtypeStruct((), np.float64)
    )
    for call in (wide, lambda x: scaled(x=x[None])["y"].sum()):
        with jax.enable_x64(False), pytest.warns(PrecisionWarning) as caught:
            transform(lambda x, call=call: call(x))(np.ones((), "float32"))
        assert {each.filename for each in caught} == {__file__}


def test_the_warning_points_to_the_callers_line_where_jax_traces_the_component_later():
    jax_component = load_component(HERE / "components" / "jax_component.py")
    call = jax.jit(lambda x: apply_component(jax_component, {"x": x, "a": 1.0}, inline=False)["s"])
    with jax.enable_x64(False), pytest.warns(PrecisionWarning) as caught:
        call(np.ones(3, "float32"))
    assert {each.filename for each in caught} == {__file__}


def test_shapes_may_be_given_as_an_array():
    f = from_callable(lambda x: x[:2], abstract=np.zeros(2))
    np.testing.assert_array_equal(jax.jit(f)(X), X[:2])


@pytest.mark.parametrize("framework", ["numpy", "jax"])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_numbers_do_not_become_others(framework, jit):
    @component(framework=framework)
    def repeated(x: Vector, times: Array[(), Int32], on: Array[(), Bool]) -> Vector:
        return x * times * on

    def run(**changes):
        inputs = {"x": X, "times": np.array(2), "on": np.array(True), **changes}
        return jit(lambda inputs: apply_component(repeated, inputs)["result"])(inputs)

    np.testing.assert_allclose(run(), 2 * X)
    np.testing.assert_allclose(run(x=jnp.asarray(X, "bfloat16")), 2 * X, rtol=0.01)
    for name, value in {"times": np.array(2.7), "x": X * 1j, "on": np.array(5)}.items():
        with pytest.raises(InputError, match=f"'{name}'") as caught:
            run(**{name: value})
        assert caught.value.code == "array_dtype_mismatch"
    if framework == "numpy":  # inlined integers are JAX's, which wrap around
        with pytest.raises(InputError, match="outside its range"), component_errors():
            jax.block_until_ready(run(times=np.array(2**40)))


@pytest.mark.parametrize("large", [2**40, np.array(2**40)], ids=["number", "array"])
def test_without_x64_large_integers_are_refused_rather_than_wrapped(large):
    @component
    def counted(x: Array[("n",), Float32], count: Array[(), Int64]) -> Array[("n",), Float32]:
        return x * np.float32(count)

    def f(x):
        return apply_component(counted, {"x": x, "count": large})["result"]

    x = X.astype("float32")
    np.testing.assert_allclose(f(x), x * np.float32(2**40))
    with jax.enable_x64(False):
        for call in (f, jax.jit(f)):
            with pytest.raises(InputError, match="`count`") as caught:
                call(x)
            assert caught.value.code == "array_value_out_of_range"


def test_arguments_of_a_callable_may_be_passed_by_name():
    def scale(x, factor, *, power=1):
        return factor * x**power

    f = from_callable(scale, abstract=lambda x, factor: x)
    np.testing.assert_allclose(jax.jit(lambda x: f(factor=2.0, x=x))(X), 2 * X)
    np.testing.assert_allclose(f(X, factor=2.0), 2 * X)
    with pytest.raises(InputError, match="`power` by name only"):
        f(X, 2.0, power=2)
    with pytest.raises(
        InputError, match=r"scale cannot be called with these arguments: .* 'facto'"
    ):
        f(X, 2.0, facto=2.0)


def test_how_a_result_may_be_described():
    for described in ({"shape": (3,), "dtype": "float64"}, X, jax.ShapeDtypeStruct((3,), float)):
        for abstract in (described, lambda x, d=described: d):
            found = jax.eval_shape(from_callable(np.sin, abstract=abstract), X)
            assert (found.shape, found.dtype) == ((3,), np.float64)
    with pytest.raises(DefinitionError, match="look like a shape"):
        jax.eval_shape(from_callable(np.sin, abstract=lambda x: x.shape), X)
    with pytest.raises(CapabilityError, match='`abstract="evaluate"`'):
        jax.eval_shape(from_callable(np.sin), X)


class Described:
    """A component that is known by its document, as a served one is; tuples are spelled as the peer does."""

    server_capabilities = object()

    def __init__(self, component):
        self.available_endpoints = component.available_endpoints
        self.openapi_schema = copy.deepcopy(component.openapi_schema)
        model = self.openapi_schema["components"]["schemas"]["ApplyInputSchema"]
        arrays = model["differentiable_arrays"]
        model["differentiable_arrays"] = {"moving.[]": arrays["moving.[0]"]}
        self.apply, self.abstract_eval = component.apply, component.abstract_eval


def test_names_and_tuples_of_arrays_and_numbers_are_read_from_the_document():
    @component
    def weighted(
        fixed: tuple[Array[("n",), Float64], int],
        moving: tuple[Differentiable[Array[("n",), Float64]], int],
    ) -> Vector:
        return fixed[0] * fixed[1] + moving[0] * moving[1]

    def f(x, y):
        return apply_component(described, {"fixed": (x, 2), "moving": (y, 3)})["result"]

    described = Described(weighted)
    for call in (f, jax.jit(f)):
        np.testing.assert_allclose(call(X, np.float32(X)), 5 * X, rtol=1e-6)
    with pytest.raises(InputError, match="it has fixed, moving") as caught:
        jax.jit(lambda x: apply_component(described, {"movign": x}))(X)
    assert (caught.value.code, caught.value.path) == ("unknown_field", "movign")


def test_results_have_the_same_containers_inside_and_outside_of_jit():
    class Pair(NamedTuple):
        left: Any
        right: Any

    swap = from_callable(
        lambda pair: (Pair(pair.right, 2 * pair.left), [pair.left]),
        abstract=lambda pair: (pair, [pair.left]),
        vjp=lambda primals, u: (Pair(2 * u[0].right + u[1][0], u[0].left),),
    )
    start = Pair(X, X + 1)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(swap)(start), swap(start))
    end, _ = jax.lax.scan(lambda pair, _: swap(pair), start, None, length=2)
    jax.tree.map(np.testing.assert_array_equal, end, Pair(2 * X, 2 * X + 2))
    gradient = jax.grad(lambda pair: sum(swap(pair)[0]).sum())(start)
    jax.tree.map(np.testing.assert_array_equal, gradient, Pair(np.full(3, 2.0), np.ones(3)))


class Containers(BaseModel):
    pair: tuple[Vector, Vector]
    scale: Array[(), Float64]
    by_number: dict[int, Vector]


@pytest.mark.parametrize("framework", ["jax", None])
def test_outputs_have_the_same_containers_inside_and_outside_of_jit(framework):
    @component(framework=framework)
    def split(x: Vector) -> Containers:
        return {"pair": (x, 2 * x), "scale": 2.0, "by_number": {7: x}}

    def f(x):
        return apply_component(split, {"x": x}, infer_by_evaluation=True)

    assert jax.tree.structure(jax.jit(f)(X)) == jax.tree.structure(f(X))
    assert jax.jit(lambda x: f(x)["scale"].astype(int))(X) == 2


def test_keys_that_read_alike_are_refused_where_derivatives_could_mix_them_up():
    f = from_callable(lambda d: d[1] + 2 * d["1"], abstract=lambda d: d[1], jvp=lambda p, t: t[0])
    with pytest.raises(InputError, match="Two of the inputs") as caught:
        jax.jit(lambda x: f({1: x, "1": x}))(X)
    assert (caught.value.code, caught.value.path) == ("ambiguous_path", "[0].{1}")


def test_arrays_of_other_machines_are_read():
    """NetCDF and FITS files have big-endian numbers, which JAX refuses."""
    swapped = X.astype(X.dtype.newbyteorder())
    np.testing.assert_array_equal(scaled(x=swapped)["y"], 2 * X)
    np.testing.assert_array_equal(jax.jit(lambda y: scaled(x=swapped, y=y)["y"])(X), 2 * X)


def test_an_array_that_jax_cannot_read_is_named():
    masked = np.ma.array(X, mask=[True, False, False])
    with pytest.raises(
        InputError, match=r"`x` of .* is a MaskedArray that JAX cannot read"
    ) as caught:
        scaled(x=masked)
    assert (caught.value.code, caught.value.path) == ("not_an_array", "x")
