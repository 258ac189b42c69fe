"""A component inside JAX, under the transformations that the ancestor supports."""

from pathlib import Path

import jax
import jax.numpy as jnp
from tesseract_core import Tesseract
from tesseract_jax import apply_tesseract, save_intermediates, sow

SOURCE = Path(__file__).parent / "wave" / "tesseract_api.py"


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
        "value": value,
        "gradients": [dv, ds],
        "jacobian": jax.jacrev(lambda v: outputs(v, s)["y"])(v),
        "batch": jax.vmap(loss, in_axes=(0, None))(jnp.stack([v, v + 1]), s),
        "sown": [result, inner["inner"]["primal"], inner["inner"]["cotangent"]],
        "tagged": tagged(1.0),
    }
