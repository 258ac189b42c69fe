"""A component inside JAX, under the transformations that the ancestor supports."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
from pydantic import ValidationError
from tesseract_core import Tesseract
from tesseract_jax import apply_tesseract, save_intermediates, sow

SOURCE = Path(__file__).parent / "wave" / "tesseract_api.py"


def transformed(outputs, loss, v, s):
    """What the ancestor's documentation names, one by one."""
    value, tangent = jax.jvp(lambda v: outputs(v, s)["y"], (v,), (jnp.ones(3),))
    _, pull = jax.vjp(lambda v, s: outputs(v, s), v, s)
    linear_value, push = jax.linearize(lambda s: outputs(v, s)["y"], s)

    def step(carry, x):
        found = outputs(carry, x)
        return 0.5 * found["y"], found["z"]

    rows = jnp.stack([v, v + 1])
    return {
        "jvp": [value, tangent],
        "vjp": pull({"y": jnp.ones(3), "z": jnp.array(1.0)}),
        "linearize": [linear_value, push(1.0)],
        "jacfwd": jax.jacfwd(lambda v: outputs(v, s)["y"])(v),
        "jit of jacrev": jax.jit(jax.jacrev(lambda v: outputs(v, s)["z"]))(v),
        "grad of vmap": jax.grad(lambda r: jnp.sum(jax.vmap(loss, (0, None))(r, s)))(rows),
        "vmap of grad": jax.vmap(jax.grad(loss), (0, None))(rows, s),
        "scan": jax.lax.scan(step, v, jnp.array([1.0, 2.0])),
        "cond": jax.lax.cond(True, lambda v: outputs(v, s)["y"], lambda v: v, v),
        "checkpoint": jax.grad(jax.checkpoint(loss))(v, s),
        "shapes": jax.tree.map(lambda a: list(a.shape), jax.eval_shape(outputs, v, s)),
    }


def methods(wave, v, s):
    """Batches are looped over; Jacobians may be asked for as a whole."""
    batch = {"part": {"v": jnp.stack([v, 2 * v]), "s": jnp.array([1.0, 2.0])}}

    def found(method):
        return jax.vmap(lambda inputs: apply_tesseract(wave, inputs, vmap_method=method))(batch)

    def whole(flag):
        return jax.jacrev(
            lambda v: apply_tesseract(
                wave,
                {"part": {"v": v, "s": s}},
                vmap_method="sequential",
                materialize_jacobian=flag,
            )["y"]
        )(v)

    return {"sequential": found("sequential"), "whole": whole(True), "rows": whole(False)}


def refused(wave, inputs):
    try:
        apply_tesseract(wave, inputs)
    except ValidationError as error:
        return error.title, sorted((p["type"], p["loc"]) for p in error.errors())
    return None


def not_arrays(wave):
    """Lists and text are no arrays."""
    found = []
    for part in ({"v": [0.5, 1.0], "s": 1.0}, {"v": "text", "s": 1.0}, {"v": (0.5,), "s": 1.0},
                 {"v": jnp.ones(2), "s": [1.0]}):  # fmt: skip
        for call in (apply_tesseract, lambda *a: jax.jit(lambda: apply_tesseract(*a))()):
            try:
                call(wave, {"part": part})
            except TypeError as error:
                found.append(re.findall("expects an array, but got [a-z]+", str(error)))
    return found


def main(output_path):
    wave = Tesseract.from_tesseract_api(SOURCE, output_path=output_path)
    v, s = jnp.array([0.0, 0.5, 2.0]), jnp.array(3.0)

    def outputs(v, s):
        return apply_tesseract(wave, {"part": {"v": v, "s": s}}, vmap_method="sequential")

    def loss(v, s):
        found = outputs(v, s)
        inner = sow(jnp.sum(found["y"] ** 2), "inner")
        return inner + found["z"]

    value, (dv, ds) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(v, s)
    result, inner = save_intermediates(jax.grad(loss))(v, s)
    tagged = save_intermediates(lambda x: sow(2 * x, "twice", tag="other"), tag="other")
    return {
        "eager": outputs(v, s),
        "transformed": transformed(outputs, loss, v, s),
        "methods": methods(wave, v, s),
        "value": value,
        "gradients": [dv, ds],
        "jacobian": jax.jacrev(lambda v: outputs(v, s)["y"])(v),
        "batch": jax.vmap(loss, in_axes=(0, None))(jnp.stack([v, v + 1]), s),
        "sown": [result, inner["inner"]["primal"], inner["inner"]["cotangent"]],
        "tagged": tagged(1.0),
        "not arrays": not_arrays(wave),
        "refused": [refused(wave, {}), refused(wave, {"part": {"v": v, "s": s}, "more": s})],
    }
