"""What component authors import, used directly: types, paths, derivative helpers, checks, recipes."""

import importlib.util
import json
import re
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ValidationError
from tesseract_core.runtime import Array, Differentiable, Float32, Float64, Int32, ShapeDType
from tesseract_core.runtime.config import get_config
from tesseract_core.runtime.experimental import (
    LazySequence,
    finite_difference_jacobian,
    finite_difference_jvp,
    finite_difference_vjp,
    jacobian_from_jvp,
    jacobian_from_vjp,
    jvp_from_jacobian,
    vjp_from_jacobian,
)
from tesseract_core.runtime.schema_types import Bool, Complex64, is_differentiable
from tesseract_core.runtime.testing.finite_differences import check_gradients
from tesseract_core.runtime.testing.regression import TestSpec
from tesseract_core.runtime.tree_transforms import (
    LRUCache,
    escape_dict_key,
    filter_func,
    flatten_with_paths,
    get_at_path,
    set_at_path,
    split_path,
    unescape_dict_key,
)

HERE = Path(__file__).parent


class Data(BaseModel):
    x: Differentiable[Array[(2, None), Float32]]
    n: Int32 = 1
    flags: Array[..., Bool] = np.array(True)
    c: Complex64 = 1j


class Inputs(BaseModel):
    a: Differentiable[Array[(None,), Float64]]
    b: Differentiable[Float64]


class Outputs(BaseModel):
    y: Differentiable[Array[(None,), Float64]]


def apply(inputs):
    return Outputs(y=inputs.b * np.sin(inputs.a))


def jacobian(inputs, jac_inputs, jac_outputs):
    blocks = {"a": np.diag(inputs.b * np.cos(inputs.a)), "b": np.sin(inputs.a)}
    return {"y": {path: blocks[path] for path in jac_inputs}}


def jvp(inputs, jvp_inputs, jvp_outputs, tangent_vector):
    return jvp_from_jacobian(jacobian, inputs, jvp_inputs, jvp_outputs, tangent_vector)


def vjp(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
    return vjp_from_jacobian(jacobian, inputs, vjp_inputs, vjp_outputs, cotangent_vector)


def kinds(call):
    try:
        call()
    except ValidationError as error:
        return sorted((p["type"], p["loc"]) for p in error.errors())
    return "accepted"


def types():
    data = Data(x=[[1, 2, 3]], n=7, flags=[True, False], c="1+2j" if False else 1 + 2j)
    encoded = json.loads(data.model_dump_json())
    wire = json.loads(data.model_dump_json(context={"array_encoding": "base64"}))
    return {
        "values": [data.x, data.n, data.flags, data.c],
        "json": encoded,
        "base64": wire,
        "round_trip": Data.model_validate(wire).x,
        "refused": [
            kinds(lambda: Data(x=[1.0, 2.0])),
            kinds(lambda: Data(x=np.ones((3, 2)))),
            kinds(lambda: Data(x=np.ones((2, 2)), n=1.5)),
            kinds(lambda: Data(x=np.ones((2, 2)), n=2**40)),
            kinds(lambda: Data(x=[["a", "b"], ["c", "d"]])),
            kinds(lambda: Data(x=np.ones((2, 2), complex))),
        ],
        "flags": [is_differentiable(Data.model_fields[n].annotation) for n in ("x", "n")],
        "aval": ShapeDType(shape=(2, 3), dtype="float32").model_dump(),
    }


def paths():
    tree = {"a": [{"b.c": np.arange(3.0)}, {"b.c": np.arange(4.0)}], "d": 1.0}
    changed = set_at_path(tree, {"d": 2.0, "a.[0].{b.c}": np.zeros(2)})
    only = filter_func(lambda t: {"s": t["d"] * t["a"][0]["b.c"]}, tree, output_paths=["s"])
    cache = LRUCache(2)
    for key in "abc":
        cache.put(key, key.upper())
    return {
        "get": get_at_path(tree, "a.[1].{b.c}"),
        "set": [changed["d"], changed["a"][0]["b.c"], tree["d"]],
        "flat": flatten_with_paths(tree, ["d", "a.[0].{b.c}"]),
        "only": only({"d": 3.0}),
        "split": list(map(str, split_path("a.[0].{b.c}"))),
        "keys": [escape_dict_key("{x}"), unescape_dict_key(escape_dict_key(r"a\b{"))],
        "cache": [cache.get("a"), cache.get("c"), cache.size],
    }


def derivatives():
    inputs = Inputs(a=[0.1, 0.7], b=2.0)
    both, out = {"a", "b"}, {"y"}
    tangent, cotangent = {"a": np.ones(2), "b": 1.0}, {"y": np.array([1.0, -1.0])}
    return {
        "jacobian": finite_difference_jacobian(apply, inputs, both, out),
        "forward": finite_difference_jacobian(apply, inputs, both, out, algorithm="forward"),
        "jvp": finite_difference_jvp(apply, inputs, both, out, tangent),
        "vjp": finite_difference_vjp(apply, inputs, both, out, cotangent),
        "from jvp": jacobian_from_jvp(jvp, inputs, both, out),
        "from vjp": jacobian_from_vjp(vjp, apply, inputs, both, out),
    }


def load(name):
    file = HERE / name / "tesseract_api.py"
    spec = importlib.util.spec_from_file_location(f"loaded_{name}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def checks():
    wave = load("wave")
    payload = {"inputs": {"part": {"v": [0.5, 1.0], "s": 2.0}}}
    right = check_gradients(wave, payload, seed=0, show_progress=False)
    spec = TestSpec(
        endpoint="apply", payload=payload, expected_outputs={"y": [1.0, 1.0], "z": 1.25}
    )
    return {endpoint: len(failures) for endpoint, failures, _ in right}, spec.rtol, spec.atol


def listed(module, **options):
    """Endpoints, entries visited and failures, entry by entry."""
    payload = {"inputs": {"part": {"v": [0.5, 1.0, 1.5, 2.0], "s": 2.0}}}
    checked = check_gradients(module, payload, show_progress=False, **{"seed": 3, **options})
    return [
        [
            endpoint,
            count,
            [
                [f.in_path, f.out_path, list(f.idx), f.grad_val, f.ref_val, bool(f.exception)]
                for f in failures
            ],
        ]
        for endpoint, failures, count in checked
    ]


def refusal(**options):
    try:
        listed(load("wave"), **options)
    except ValueError as error:
        return re.findall(r"part\.\w+|greater than 0|nothing|found", str(error))[:1]
    return None


def checked_entries():
    """As many entries are visited, and the same ones, for the same arguments."""
    wrong, raising, silent = load("wave"), load("wave"), load("wave")
    jacobian = wrong.jacobian

    def off(inputs, jac_inputs, jac_outputs):
        found = jacobian(inputs, jac_inputs, jac_outputs)
        return {out: {path: 1.5 * a for path, a in row.items()} for out, row in found.items()}

    def fails(inputs, jac_inputs, jac_outputs):
        raise ZeroDivisionError("the author's own")

    wrong.jacobian, raising.jacobian = off, fails
    del silent.jacobian_vector_product, silent.vector_jacobian_product
    return {
        "all": listed(load("wave")),
        "few": listed(load("wave"), max_evals=2),
        "some": listed(
            load("wave"), input_paths=["part.v"], output_paths=["y"], endpoints=["jacobian"]
        ),
        "wrong": listed(wrong, max_evals=7),
        "sampled": listed(
            wrong, max_evals=5, max_output_samples=2, endpoints=["vector_jacobian_product"]
        ),
        "steps": listed(wrong, max_evals=3, eps={"part.v": 1e-3, "part.s": 1e-5}),
        "raising": listed(raising, max_evals=3),
        "written": listed(silent, max_evals=3),
        "refused": [
            refusal(eps={"part.v": 1e-3}),
            refusal(max_output_samples=0),
            refusal(input_paths=["part.w"]),
            refusal(output_paths=["part.w"]),
            refusal(endpoints=["hessian"]),
        ],
    }


def lazily():
    class Many(BaseModel):
        items: LazySequence[Float64]

    given = Many(items=[1.0, 2.0]).items
    made = LazySequence([3, 1, 2], lambda key: 10 * key)
    return [[float(x) for x in given], len(given), float(given[1]), list(made), made[0]]


def main(folder):
    return {
        "types": types(),
        "paths": paths(),
        "derivatives": derivatives(),
        "checks": checks(),
        "checked entries": checked_entries(),
        "lazily": lazily(),
        "settings": [get_config().output_format, get_config().name, get_config().debug],
        "recipes": recipes(),
    }


def recipes():
    from tesseract_core.runtime.jax_recipes import (
        jax_abstract_eval,
        jax_apply,
        jax_jacobian,
        jax_jvp,
        jax_vjp,
    )

    @eqx.filter_jit
    def apply_jit(inputs):
        part = inputs["part"]
        return {"y": part["s"] * jnp.sin(part["v"]), "z": jnp.sum(part["v"] ** 2)}

    wave = load("wave")
    inputs = wave.InputSchema.model_validate({"part": {"v": [0.5, 1.0], "s": 2.0}})
    part, y = {"part.v", "part.s"}, {"y"}
    tangent = {"part.v": jnp.ones(2), "part.s": jnp.array(1.0)}
    return {
        "apply": jax_apply(apply_jit, inputs),
        "jacobian": jax_jacobian(apply_jit, inputs, part, y),
        "jvp": jax_jvp(apply_jit, inputs, part, y, tangent),
        "vjp": jax_vjp(apply_jit, inputs, part, y, {"y": jnp.array([1.0, 2.0])}),
        "has_abstract": callable(jax_abstract_eval),
    }
