"""Langevin dynamics: values that are samples of the distribution that the energy stands for."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class LangevinState(NamedTuple):
    """The key of the next noise."""

    key: jax.Array


def langevin(
    step_size: float, *, temperature: float = 1.0, seed: int = 0
) -> optax.GradientTransformation:
    """An optimiser of values that follows the gradient and adds noise: unadjusted Langevin dynamics.

    One step is `h ← h − η ∂E/∂h + √(2 η T) ξ` with `ξ` standard normal. For small steps η the values become
    samples of the density proportional to `exp(−E(h) / T)`.

    Args:
        step_size: η.
        temperature: T; at 0 this is gradient descent.
        seed: of the noise. A `Learner` draws other noise on every batch.

    Example:
        >>> from chainrule.predictive import Learner, langevin, settle
        >>> sampler = Learner(states=langevin(0.05), schedule=settle(100))
    """

    # `optax.add_noise` would do, but does not run under strict dtype promotion.
    def init(params: Any) -> LangevinState:
        return LangevinState(jax.random.key(seed))

    def update(gradients: Any, state: LangevinState, params: Any = None) -> Any:
        leaves, treedef = jax.tree.flatten(gradients)
        following, *keys = jax.random.split(state.key, len(leaves) + 1)
        # The noise of one step has the variance 2 η T: then the density that does not change under h ← h - η
        # ∇E + noise is, for small η, proportional to exp(-E / T) (Euler–Maruyama of dh = -∇E dt + √(2T) dW).
        scale = jnp.sqrt(2 * step_size * temperature)
        moves = [
            -step_size * leaf + (scale * jax.random.normal(key, leaf.shape)).astype(leaf.dtype)
            for leaf, key in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(treedef, moves), LangevinState(following)

    return optax.GradientTransformation(init, update)
