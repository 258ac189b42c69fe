"""Every transformation as data: a function of `x` and the tracked `net`, to one of the same arguments."""

import jax
import jax.numpy as jnp

import chainrule.stateful as cs


def scalar(f):
    """The sum of what a function gives."""
    return lambda x, **kw: jnp.sum(f(x, **kw))


def custom(f):
    """A primal that is also its own forward pass; the cotangent passes unchanged."""
    g = cs.custom_vjp(lambda x, **kw: f(x, **kw))
    g.defvjp(lambda x, **kw: (f(x, **kw), None), lambda _, ct: (ct,))
    return g


def table(mask):
    """The transformations by name; `mask` selects the parameters of "grad by mask"."""
    return {
        "jit": cs.jit,
        "vmap": lambda f: cs.vmap(f, in_axes=None, axis_size=2),
        "grad": lambda f: cs.grad(scalar(f)),
        "grad by mask": lambda f: cs.grad(scalar(f), kwargs_mask=mask),
        "value_and_grad": lambda f: cs.value_and_grad(scalar(f)),
        "jacfwd": cs.jacfwd,
        "jacrev": cs.jacrev,
        "hessian": lambda f: cs.hessian(scalar(f)),
        "jvp": lambda f: lambda x, **kw: cs.jvp(f, (x,), (x,), **kw),
        "vjp": lambda f: lambda x, **kw: cs.vjp(f, x, **kw)[0],
        "linearize": lambda f: lambda x, **kw: cs.linearize(f, x, **kw)[0],
        "scan": lambda f: (
            lambda x, **kw: cs.scan(lambda c, _, **kw: (c + 1, f(x, **kw)), 0, length=2, **kw)[1]
        ),
        "while_loop": lambda f: (
            lambda x, **kw: cs.while_loop(
                lambda c, **kw: c[0] < 2, lambda c, **kw: (c[0] + 1, f(c[1], **kw)), (0, x), **kw
            )
        ),
        "cond": lambda f: lambda x, **kw: cs.cond(True, f, lambda x, **kw: x, x, **kw),
        "switch": lambda f: lambda x, **kw: cs.switch(1, [lambda x, **kw: x, f], x, **kw),
        "checkpoint": cs.checkpoint,
        "custom_vjp": custom,
        "eval_shape": lambda f: lambda x, **kw: cs.eval_shape(f, x, **kw),
        "shard_map": lambda f: cs.jit(  # eagerly, shard_map compiles every operation
            cs.shard_map(
                f,
                mesh=jax.make_mesh((1,), ("d",)),
                in_specs=jax.P(),
                out_specs=jax.P(),
                check_vma=False,
            )
        ),
    }
