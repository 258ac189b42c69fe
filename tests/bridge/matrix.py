"""Every transformation as a function of the function it transforms: the rows of the test matrix.

Each takes `f(x, a) -> {"y": f64[n], "s": f64[]}` and returns numbers; a component and the same function in
plain JAX have to give the same ones.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def reference(x, a):
    """What `components/numpy_component.py` computes."""
    return {"y": a * jnp.sin(x) + x.sum() * x, "s": a * (x * x).sum()}


def point():
    return jnp.array([0.3, -0.7, 1.1]), jnp.array(1.7)


def direction():
    return jnp.array([1.0, 0.5, -0.25]), jnp.array(0.6)


def batch():
    x, a = point()
    return jnp.stack([x, 2 * x, x - 1.0, 0.5 * x]), jnp.array([1.0, 2.0, -1.0, 0.3]) * a


def _scalar(f):
    return lambda x, a: f(x, a)["s"] + (f(x, a)["y"] ** 2).sum()


def _y(f):
    return lambda x, a: f(x, a)["y"]


def _sum_y(f):
    return lambda x, a: f(x, a)["y"].sum()


FIRST_ORDER = {}
SECOND_ORDER = {}


def first_order(function):
    FIRST_ORDER[function.__name__] = function
    return function


def second_order(function):
    SECOND_ORDER[function.__name__] = function
    return function


@first_order
def eager(f):
    return f(*point())


@first_order
def jit(f):
    return jax.jit(f)(*point())


@first_order
def jit_of_jit(f):
    return jax.jit(lambda x, a: jax.jit(f)(x * 2, a))(*point())


@first_order
def disable_jit(f):
    with jax.disable_jit():
        return jax.jit(f)(*point())


@first_order
def python_scalar_argument(f):
    return jax.jit(lambda x: f(x, 1.5))(point()[0])


@first_order
def numpy_arguments(f):
    return f(*(np.asarray(each) for each in point()))


@first_order
def grad(f):
    return jax.grad(_scalar(f), argnums=(0, 1))(*point())


@first_order
def jit_of_grad(f):
    return jax.jit(jax.grad(_scalar(f), argnums=(0, 1)))(*point())


@first_order
def grad_of_jit(f):
    return jax.grad(jax.jit(_scalar(f)), argnums=1)(*point())


@first_order
def value_and_grad(f):
    return jax.jit(jax.value_and_grad(_scalar(f)))(*point())


@first_order
def grad_with_auxiliary_output(f):
    return jax.grad(lambda x, a: (f(x, a)["s"], f(x, a)["y"]), has_aux=True)(*point())


@first_order
def jvp(f):
    return jax.jvp(f, point(), direction())


@first_order
def jvp_of_one_argument(f):
    x, a = point()
    return jax.jit(lambda x: jax.jvp(lambda x: f(x, a), (x,), (direction()[0],)))(x)


@first_order
def vjp(f):
    outputs, pull = jax.vjp(f, *point())
    return outputs, pull({"y": direction()[0], "s": direction()[1]})


@first_order
def linearize(f):
    outputs, push = jax.linearize(f, *point())
    return outputs, push(*direction()), push(*point())


@first_order
def linear_transpose(f):
    _, push = jax.linearize(f, *point())
    return jax.linear_transpose(push, *point())({"y": direction()[0], "s": direction()[1]})


@first_order
def transpose_of_vjp(f):
    _, pull = jax.vjp(f, *point())
    outputs = {"y": direction()[0], "s": direction()[1]}
    return jax.linear_transpose(pull, outputs)(point())


@first_order
def jvp_of_vjp_along_cotangents(f):
    _, pull = jax.vjp(f, *point())
    outputs = {"y": direction()[0], "s": direction()[1]}
    return jax.jvp(pull, (outputs,), (outputs,))


@first_order
def jacfwd(f):
    return jax.jacfwd(f, argnums=(0, 1))(*point())


@first_order
def jacrev(f):
    return jax.jit(jax.jacrev(f, argnums=(0, 1)))(*point())


@first_order
def vmap(f):
    return jax.vmap(f)(*batch())


@first_order
def jit_of_vmap(f):
    return jax.jit(jax.vmap(f))(*batch())


@first_order
def vmap_of_one_argument(f):
    return jax.vmap(f, in_axes=(0, None))(batch()[0], point()[1])


@first_order
def vmap_with_axes(f):
    x, a = batch()
    axes = {"y": 1, "s": 0}
    return jax.vmap(f, in_axes=(1, 0), out_axes=axes)(x.T, a)


@first_order
def vmap_of_vmap(f):
    x, a = batch()
    return jax.jit(jax.vmap(jax.vmap(f, in_axes=(None, 0)), in_axes=(0, None)))(x, a[:2])


@first_order
def vmap_of_grad(f):
    return jax.jit(jax.vmap(jax.grad(_scalar(f), argnums=(0, 1))))(*batch())


@first_order
def grad_of_vmap(f):
    x, a = batch()
    return jax.grad(lambda x, a: jax.vmap(_scalar(f), in_axes=(0, None))(x, a).sum(), (0, 1))(
        x, a[0]
    )


@first_order
def jacfwd_of_vmap(f):
    return jax.jacfwd(jax.vmap(_y(f)))(*(each[:2] for each in batch()))


@first_order
def vmap_of_jacrev(f):
    return jax.vmap(jax.jacrev(_y(f)))(*(each[:2] for each in batch()))


@first_order
def jit_of_vmap_of_jacfwd(f):
    return jax.jit(jax.vmap(jax.jacfwd(f, argnums=(0, 1))))(*batch())


@first_order
def vmap_over_cotangents(f):
    _, pull = jax.vjp(_y(f), *point())
    return jax.vmap(pull)(jnp.eye(2, 3))


@first_order
def lax_map(f):
    return jax.lax.map(lambda arguments: f(*arguments), batch())


@first_order
def scan(f):
    def step(x, a):
        out = f(x, a)
        return 0.1 * out["y"], out["s"]

    return jax.jit(lambda x, a: jax.lax.scan(step, x, a))(point()[0], batch()[1])


@first_order
def grad_of_scan(f):
    def loss(x, a):
        end, sums = jax.lax.scan(lambda x, a: (0.1 * f(x, a)["y"], f(x, a)["s"]), x, a)
        return end.sum() + sums.sum()

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(point()[0], batch()[1])


@first_order
def while_loop(f):
    x, a = point()
    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, 0.1 * f(c[1], a)["y"]), (0, x)
    )


@first_order
def jvp_of_while_loop(f):
    def loop(x, a):
        return jax.lax.while_loop(
            lambda c: c[0] < 2, lambda c: (c[0] + 1, 0.1 * f(c[1], a)["y"]), (0, x)
        )[1]

    return jax.jit(lambda *p: jax.jvp(loop, p, direction()))(*point())


@first_order
def fori_loop(f):
    x, a = point()
    return jax.grad(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: 0.1 * f(x, a)["y"], x).sum())(x)


@first_order
def cond(f):
    def choose(x, a):
        return jax.lax.cond(a > 1, lambda: f(x, a)["s"], lambda: x.sum())

    return jax.jit(jax.value_and_grad(choose))(*point())


@first_order
def switch(f):
    def choose(index, x, a):
        branches = [lambda x, a: x.sum(), _sum_y(f), lambda x, a: f(x, a)["s"]]
        return jax.lax.switch(index, branches, x, a)

    return jax.jit(jax.vmap(jax.grad(choose, argnums=1), (0, None, None)))(jnp.arange(3), *point())


@first_order
def associative_scan(f):
    x, _ = batch()

    def combine(left, right):
        return jax.vmap(lambda u, v: f(u, v.sum())["y"])(left, right)

    return jax.lax.associative_scan(combine, x[:3])


@first_order
def checkpoint(f):
    return jax.jit(jax.grad(jax.checkpoint(_scalar(f)), argnums=(0, 1)))(*point())


@first_order
def inside_custom_vjp(f):
    @jax.custom_vjp
    def doubled(x, a):
        return f(x, a)["s"]

    doubled.defvjp(
        lambda x, a: (f(x, a)["s"], (x, a)),
        lambda saved, u: (2 * u * f(*saved)["y"], u * saved[1]),
    )
    return jax.jit(jax.grad(doubled, argnums=(0, 1)))(*point())


@first_order
def inside_custom_jvp(f):
    @jax.custom_jvp
    def doubled(x, a):
        return f(x, a)["s"]

    @doubled.defjvp
    def _(primals, tangents):
        return doubled(*primals), 2 * (f(*primals)["y"] * tangents[0]).sum()

    return jax.jit(jax.grad(doubled))(*point())


@first_order
def eval_shape(f):
    shapes = jax.eval_shape(jax.grad(_scalar(f)), *point())
    return np.zeros(shapes.shape, shapes.dtype)


@first_order
def make_jaxpr(f):
    program = jax.make_jaxpr(_scalar(f))(*point())
    return jax.core.eval_jaxpr(program.jaxpr, program.consts, *point())[0]


@first_order
def ahead_of_time(f):
    return jax.jit(f).lower(*point()).compile()(*point())


@first_order
def donated(f):
    x, a = point()
    return jax.jit(lambda x, a: f(x, a)["y"], donate_argnums=0)(x + 0.0, a)


@first_order
def shard_map(f):
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = PartitionSpec("i")
    mapped = jax.shard_map(
        lambda x, a: jax.vmap(f)(x, a)["y"], mesh=mesh, in_specs=(spec, spec), out_specs=spec
    )
    return jax.jit(mapped)(*batch())


@first_order
def jit_with_shardings(f):
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.jit(_y(f), in_shardings=(sharding, sharding), out_shardings=sharding)(*point())


@first_order
def debug_nans(f):
    with jax.debug_nans(True):
        return jax.jit(_scalar(f))(*point())


@first_order
def dtype_of_gradient_follows_input(f):
    x, a = point()
    return jax.grad(lambda x: f(x, a)["s"].astype(x.dtype))(x.astype(jnp.float32))


@second_order
def hessian(f):
    return jax.jit(jax.hessian(_scalar(f)))(*point())


@second_order
def grad_of_grad(f):
    return jax.grad(lambda x, a: jax.grad(_scalar(f))(x, a).sum(), argnums=(0, 1))(*point())


@second_order
def jvp_of_grad(f):
    return jax.jvp(jax.grad(_scalar(f)), point(), direction())


@second_order
def grad_of_jvp(f):
    def along(x, a):
        return jax.jvp(_scalar(f), (x, a), direction())[1]

    return jax.jit(jax.grad(along, argnums=(0, 1)))(*point())


@second_order
def jvp_of_jvp(f):
    def along(x, a):
        return jax.jvp(f, (x, a), direction())[1]

    return jax.jvp(along, point(), direction())


@second_order
def jacfwd_of_jacfwd(f):
    return jax.jacfwd(jax.jacfwd(_y(f)))(*point())


@second_order
def vmap_of_hessian(f):
    return jax.vmap(jax.hessian(_scalar(f)))(*(each[:2] for each in batch()))
