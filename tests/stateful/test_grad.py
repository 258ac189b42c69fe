import jax
import jax.numpy as jnp
import numpy as np
import pytest

import chainrule.stateful as cs
from chainrule.errors import DefinitionError, InputError
from chainrule.stateful import M

X = jnp.array([0.5, 2.0])
W = jnp.array([3.0, -1.0])


class Bias(cs.Param):
    pass


class Net(cs.Module):
    def __init__(self):
        self.w = cs.Param(W)
        self.b = Bias(jnp.array(0.25))
        self.tied = self.w
        self.calls = cs.Param(jnp.zeros((), int))
        self.rng = cs.RandomKeyGenerator(0)


def loss(x, *, net):
    net.calls += 1
    return jnp.sum(jnp.sin(net.w * x) * net.tied) + net.b**2


def pure(x, w, b):
    return jnp.sum(jnp.sin(w * x) * w) + b**2


def same(a, b):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=1e-5, atol=1e-6), a, b)


@pytest.mark.parametrize(
    ("argnums", "args"), [(2, (X, X)), (-3, (X, X)), ((0, 2), (X, X)), (0, ())]
)
def test_argnums_beyond_the_arguments_are_refused(argnums, args):
    """With a mask too, where JAX would find the parameters there."""
    weight = cs.Param(jnp.array(2.0))
    gradient = cs.grad(
        lambda *args, w: sum(map(jnp.sum, args), w.get()), argnums=argnums, kwargs_mask=True
    )
    with pytest.raises(InputError, match=f"which this call has {len(args)}; found") as info:
        gradient(*args, w=weight)
    assert info.value.code == "bad_argnums"


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1,), -1])
def test_positional_arguments_as_in_jax(name, argnums):
    f = lambda x, y: (jnp.sum(x**2 * y), {"aux": x + y})  # noqa: E731
    ours = getattr(cs, name)(f, argnums=argnums, has_aux=True)(X, W)
    same(ours, getattr(jax, name)(f, argnums=argnums, has_aux=True)(X, W))
    g = lambda x, y: f(x, y)[0]  # noqa: E731
    same(getattr(cs, name)(g, argnums=argnums)(X, W), getattr(jax, name)(g, argnums=argnums)(X, W))


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_default_is_the_first_argument(name):
    f = lambda x, y: jnp.sum(x**2 * y)  # noqa: E731
    same(getattr(cs, name)(f)(X, W), getattr(jax, name)(f)(X, W))


def test_selected_parameters_are_one_more_argument():
    net = Net()
    dx, dw, db = jax.grad(pure, (0, 1, 2))(X, W, 0.25)
    same(cs.grad(loss, kwargs_mask=True)(X, net=net), {"net": {"b": db, "tied": dw}})
    same(cs.grad(loss, kwargs_mask={"net": Bias})(X, net=net), {"net": {"b": db}})
    both = cs.grad(loss, argnums=0, kwargs_mask=M(cs.Param) - Bias)(X, net=net)
    same(both, (dx, {"net": {"tied": dw}}))
    value, grads = cs.value_and_grad(loss, kwargs_mask=M(Bias))(X, net=net)
    same((value, grads), (pure(X, W, 0.25), {"net": {"b": db}}))
    assert int(net.calls) == 4


def test_jacobians_and_hessians_of_parameters():
    net = Net()
    vector = lambda x, *, net: jnp.sin(net.w * x) * net.tied + net.b  # noqa: E731
    plain = lambda w, b: jnp.sin(w * X) * w + b  # noqa: E731
    jw, jb = jax.jacrev(plain, (0, 1))(W, 0.25)
    for transform in (cs.jacfwd, cs.jacrev):
        same(transform(vector, kwargs_mask=True)(X, net=net), {"net": {"b": jb, "tied": jw}})
    (hww, hwb), (hbw, hbb) = jax.hessian(lambda w, b: pure(X, w, b), (0, 1))(W, 0.25)
    expected = {"b": {"net": {"b": hbb, "tied": hbw}}, "tied": {"net": {"b": hwb, "tied": hww}}}
    same(cs.hessian(loss, kwargs_mask=True)(X, net=net), {"net": expected})


def test_jvp_vjp_linearize_with_parameters():
    net = Net()
    v = {"net": {"b": jnp.array(2.0), "tied": jnp.ones(2)}}
    args, tangents = (X, W, 0.25), (X, jnp.ones(2), 2.0)
    expected = jax.jvp(pure, args, tangents)
    same(cs.jvp(loss, (X,), (X, v), kwargs_mask=True, net=net), expected)
    value, push = cs.linearize(loss, X, kwargs_mask=True, net=net)
    same((value, push(X, v)), expected)
    value, pull = cs.vjp(loss, X, kwargs_mask=True, net=net)
    dx, dw, db = jax.vjp(pure, *args)[1](1.5)
    same(pull(1.5), (dx, {"net": {"b": db, "tied": dw}}))
    assert int(net.calls) == 3


def test_aux_is_not_touched():
    f = lambda x, *, net: (jnp.sum(net.w * x), (1, 2))  # noqa: E731
    (_value, aux), grads = cs.value_and_grad(f, has_aux=True, kwargs_mask=True)(X, net=Net())
    assert aux == (1, 2)
    same(grads, {"net": {"tied": X, "b": 0.0}})
    with pytest.raises(TypeError):  # a second return without has_aux is an error, as in JAX
        cs.grad(lambda x: (jnp.sum(x), 1))(X)


def test_gradients_through_a_write_are_those_of_the_written_value():
    """What is written can be read again: state inside one call is ordinary dataflow."""
    net = Net()

    def f(x, *, net):
        net.w.set(net.w * x)
        return jnp.sum(net.tied**2)

    same(
        cs.grad(f, kwargs_mask=M(cs.Param).at("tied"))(X, net=net), {"net": {"tied": 2 * W * X**2}}
    )
    same(net.w.get(), W * X)


def test_second_order_through_nesting():
    net = Net()
    outer = cs.grad(lambda x, *, net: jnp.sum(cs.grad(loss)(x, net=net)), kwargs_mask=True)
    inner = jax.grad(lambda w, b: jnp.sum(jax.grad(pure)(X, w, b)), (0, 1))(W, 0.25)
    same(outer(X, net=net), {"net": {"b": inner[1], "tied": inner[0]}})


def test_frozen_and_pytree_parameters():
    pair = cs.Param({"a": W, "b": jnp.ones(2)})
    f = lambda *, pair, fixed: jnp.sum(pair["a"] * pair["b"] * fixed)  # noqa: E731
    grads = cs.grad(f, kwargs_mask=True)(pair=pair, fixed=cs.Param(X, frozen=True))
    same(grads, {"pair": {"a": X, "b": W * X}})
    exact = cs.grad(f, kwargs_mask=cs.Param)(pair=pair, fixed=cs.Param(X, frozen=True))
    same(exact["fixed"], W)


def test_checkpoint_writes_once_and_differentiates():
    net = Net()
    remat = cs.checkpoint(loss, policy=jax.checkpoint_policies.nothing_saveable)
    same(cs.grad(remat, kwargs_mask=Bias)(X, net=net), {"net": {"b": 0.5}})
    assert int(net.calls) == 1
    assert float(cs.checkpoint(lambda n, x: x * n, static_argnums=0)(3, 2.0)) == 6


def test_custom_vjp():
    net = Net()

    @cs.custom_vjp(kwargs_mask={"net": Bias})
    def f(x, *, net):
        net.calls += 1
        return jnp.sum(x) * net.b

    with pytest.raises(DefinitionError, match="defvjp"):
        f(X, net=net)

    def forward(x, *, net):
        net.calls += 10
        return f(x, net=net), x

    f.defvjp(forward, lambda x, ct: (7 * ct * x, {"net": {"b": 5 * ct}}))
    assert float(f(X, net=net)) == 0.625
    assert int(net.calls) == 1
    dx, db = cs.grad(f, argnums=0, kwargs_mask=Bias)(X, net=net)
    same((dx, db), (7 * X, {"net": {"b": 5.0}}))
    assert int(net.calls) == 12

    @cs.custom_vjp(nondiff_argnums=(0,))
    def scaled(factor, x):
        return factor * x

    scaled.defvjp(lambda k, x: (k * x, None), lambda k, _, ct: (100 * k * ct,))
    assert float(cs.grad(lambda x: scaled(2.0, x))(1.0)) == 200


class OwnRules(cs.Module):
    """x² · w with derivatives that are wrong on purpose, to see that the rules are used."""

    def __init__(self):
        self.w = cs.Param(jnp.array(2.0))
        self.calls = cs.Param(jnp.zeros((), int))

    @cs.custom_vjp
    def backward(self, x):
        return self.w * x**2

    def _forward(self, x):
        self.calls += 1
        return self.w * x**2, x

    backward.defvjp(_forward, lambda x, cotangent: (10 * x * cotangent,))

    @cs.custom_jvp
    def forward(self, x):
        return self.w * x**2

    @forward.defjvp
    def _rule(self, primals, tangents):
        self.calls += 1
        return self.w * primals[0] ** 2, 20 * primals[0] * tangents[0]


@pytest.mark.parametrize(("name", "factor"), [("backward", 10.0), ("forward", 20.0)])
def test_custom_derivatives_of_methods(name, factor):
    model = OwnRules()
    value, gradient = cs.value_and_grad(getattr(model, name))(3.0)
    assert (float(value), float(gradient)) == (18.0, 3 * factor)
    assert int(model.calls.value) == 1
    same(getattr(model, name)(3.0), 18.0)


def test_custom_vjp_of_a_parameter_on_an_explicit_mesh():
    """JAX 0.10 cannot make zeros there outside of `jit`: none must be needed for what passes through."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    there = jax.device_put(jnp.ones(2), jax.NamedSharding(mesh, jax.P()))
    net = Net()
    net.w.set(there)

    @cs.custom_vjp
    def f(x, *, net):
        net.calls += 1
        return jnp.sum(x), jnp.sum(x), jnp.argmax(x)

    def backward(x, cotangent):
        used, unused, integer = cotangent
        assert (integer.shape, integer.dtype) == ((), jax.dtypes.float0)
        return (7 * (used + unused) * x,)

    f.defvjp(lambda x, *, net: (f(x, net=net), x), backward)
    same(cs.grad(lambda x, *, net: f(x, net=net)[0])(X, net=net), 7 * X)
    assert int(net.calls) == 1


def test_shard_map_forks_generators_and_keeps_specs():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    p, total = cs.Param(jnp.arange(4.0)), cs.Param(jnp.zeros(()))

    def f(x, *, p, total):
        p += x
        total += jax.lax.psum(jnp.sum(p.get()), "d")
        return x + jax.random.uniform(cs.RKG())

    spec = jax.P("d")
    mapped = cs.shard_map(
        f, mesh=mesh, in_specs=spec, out_specs=spec, kwargs_mask={"p": spec}, check_vma=False
    )
    out = mapped(jnp.ones(4), p=p, total=total)
    assert out.shape == (4,)
    same((p.get(), total.get()), (jnp.arange(4.0) + 1, 10.0))


def test_eval_shape_changes_nothing():
    net = Net()
    out = cs.eval_shape(loss, X, net=net)
    assert (out.shape, out.dtype) == ((), jnp.float32)
    assert int(net.calls) == 0


def test_a_shared_parameter_is_selected_by_any_keyword_that_holds_it():
    net, other = Net(), Net()
    other.w = net.w
    loss = lambda *, a, b: jnp.sum(a.w * b.w)  # noqa: E731
    (gradients,) = cs.grad(loss, kwargs_mask={"b": M().at("w")})(a=net, b=other).values()
    np.testing.assert_allclose(gradients["w"], 2 * W)
    assert cs.grad(loss, kwargs_mask=True)(a=net, b=other)["a"].keys() >= {"tied"}


def test_options_by_position_as_in_jax():
    function = lambda x, y: x * y**2  # noqa: E731
    assert float(cs.grad(function, 1)(2.0, 3.0)) == float(jax.grad(function, 1)(2.0, 3.0))
    np.testing.assert_allclose(cs.vmap(function, (0, None), 0)(X, 3.0), 9 * X)
