"""`checkpoint`, custom derivatives, `jit` options, `shard_map`, and what cannot be entered."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule._jaxpr import Primitive
from chainrule.errors import CapabilityError
from chainrule.harvest import DuplicateNameError, grad_wrt, plant, save_intermediates, sow


@pytest.mark.parametrize(
    "policy",
    [None, jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.dots_saveable],
    ids=["nothing", "everything", "dots"],
)
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_checkpoint_is_captured_once(policy, inner):
    def f(x):
        @inner
        def block(x):
            a = sow(jnp.sin(x), "a")
            sow(a * 2, "unused")
            return jnp.sum(jnp.cos(a @ a))

        return jax.checkpoint(block, policy=policy)(x) ** 2

    x = jnp.arange(4.0).reshape(2, 2)
    a = jnp.sin(x)
    expected = jax.grad(lambda a: jnp.sum(jnp.cos(a @ a)) ** 2)(a)
    for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        _, found = save_intermediates(transform(f))(x)
        np.testing.assert_allclose(found["a"]["primal"], a, rtol=1e-6)
        np.testing.assert_allclose(found["a"]["cotangent"], expected, rtol=1e-5)
        np.testing.assert_allclose(found["unused"]["primal"], 2 * a, rtol=1e-6)


def test_custom_jvp_keeps_its_derivative():
    @jax.custom_jvp
    def f(x):
        return sow(jnp.sin(x), "h") * 2

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 7.0))
    _, found = save_intermediates(f)(1.0)
    np.testing.assert_allclose(found["h"]["primal"], np.sin(1.0), rtol=1e-6)
    assert jax.grad(lambda x: save_intermediates(f)(x)[0])(1.0) == 7.0
    inside = jax.grad(lambda x: save_intermediates(f)(x)[1]["h"]["primal"])(1.0)
    np.testing.assert_allclose(inside, np.cos(1.0), rtol=1e-6)
    slope, found = save_intermediates(jax.grad(f))(1.0)
    assert slope == 7.0
    np.testing.assert_allclose(found["h"]["primal"], np.sin(1.0), rtol=1e-6)


def test_custom_vjp_keeps_its_derivative():
    @jax.custom_vjp
    def f(x):
        return sow(jnp.sin(x), "h") * 2

    def forward(x):
        return sow(jnp.sin(x), "in forward") * 2, x

    def backward(x, cotangent):
        return (sow(cotangent * 7.0, "in backward"),)

    f.defvjp(forward, backward)
    _, found = save_intermediates(f)(1.0)
    np.testing.assert_allclose(found["h"]["primal"], np.sin(1.0), rtol=1e-6)
    assert jax.grad(lambda x: save_intermediates(f)(x)[0])(1.0) == 7.0
    # Under grad the forward and backward rules run, not the function.
    slope, found = save_intermediates(jax.grad(lambda x: f(x) * 3))(1.0)
    assert slope == 21.0
    assert set(found) == {"in forward", "in backward"}
    assert found["in backward"]["primal"] == 21.0


def test_jit_options_survive():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    f = jax.jit(lambda x: sow(x * 2, "h") + 1, out_shardings=device, inline=True)
    g = jax.jit(lambda x: sow(f(x), "g"), in_shardings=device, keep_unused=True)
    assert save_intermediates(g)(2.0) == (5.0, {"h": {"primal": 4.0}, "g": {"primal": 5.0}})


def test_no_effect_is_left_behind():
    """Programs with effects are slow to call, and cannot be transformed freely."""

    @jax.custom_vjp
    def custom(x):
        return sow(jnp.sin(x), "custom")

    custom.defvjp(lambda x: (custom(x), x), lambda x, cotangent: (cotangent * jnp.cos(x),))

    def f(x):
        x = jax.checkpoint(jax.jit(lambda x: sow(x * 2, "jit")))(custom(x))
        x = jax.lax.scan(lambda c, _: (sow(c * 2, "scan"), None), x, None, length=2)[0]
        return jax.lax.cond(x > 0, lambda x: sow(x, "cond"), lambda x: x, x)

    for function, x in ((f, 1.0), (jax.grad(f), 1.0), (jax.vmap(f), jnp.ones(2))):
        assert not jax.make_jaxpr(save_intermediates(function))(x).effects
        assert not jax.make_jaxpr(function)(x).effects
    for changed in (plant(f, {"jit": 1.0}), grad_wrt(f, "scan")):
        assert not jax.make_jaxpr(changed)(1.0).effects


def helper(x):
    return sow(x * 2, "twice")


def test_a_duplicate_name_shows_both_places():
    def f(x):
        first = helper(x)
        return first + helper(x + 1)

    with pytest.raises(DuplicateNameError) as raised:
        save_intermediates(f)(1.0)
    assert isinstance(raised.value, ValueError)
    line, start = helper.__code__.co_firstlineno + 1, f.__code__.co_firstlineno
    assert str(raised.value).count(f"{__file__}:{line} (helper)") == 2
    for call in (start + 1, start + 2):
        assert f", called at {__file__}:{call} " in str(raised.value)
    assert raised.value.code == "duplicate_name"
    assert save_intermediates(f, duplicates="last")(1.0)[1] == {"twice": {"primal": 4.0}}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_append_is_in_execution_order(wrap):
    def f(x):
        step = wrap(lambda x: sow(x**2, "square"))
        return step(step(x))

    _, found = save_intermediates(jax.grad(f), duplicates="append")(3.0)
    assert found["square"]["primal"] == [9.0, 81.0]
    assert found["square"]["cotangent"] == [1.0, 18.0]


def test_an_unknown_higher_order_primitive_is_named():
    mystery = Primitive("mystery")
    mystery.multiple_results = True
    mystery.def_abstract_eval(lambda *avals, program: program.out_avals)
    program = jax.make_jaxpr(lambda x: sow(x * 2, "h"))(1.0)

    def f(x):
        return mystery.bind(x, program=program)[0]

    with pytest.raises(CapabilityError, match="'mystery'") as raised:
        save_intermediates(f)(1.0)
    assert raised.value.code == "cannot_look_inside"
    assert str(__file__) in str(raised.value)


def test_a_linear_solver_is_named():
    def f(b):
        return jax.lax.custom_linear_solve(
            lambda x: sow(2.0 * x, "inside"), b, lambda matvec, b: b / 2, symmetric=True
        )

    with pytest.raises(CapabilityError, match="custom_linear_solve"):
        save_intermediates(f)(1.0)


def test_beside_a_solver_that_keeps_open_programs():
    """lineax keeps the program of an operator in a parameter of its primitive, without its constants."""
    lineax = pytest.importorskip("lineax")
    diagonal = jnp.array([2.0, 4.0])

    def f(b, inside=False):
        operator = lineax.FunctionLinearOperator(
            lambda x: sow(diagonal * x, "inside") if inside else diagonal * x,
            jax.ShapeDtypeStruct(b.shape, b.dtype),
        )
        return jnp.sum(lineax.linear_solve(operator, sow(b, "b"), lineax.LU()).value ** 2)

    b = jnp.array([1.0, 3.0])
    expected = 2 * b / diagonal**2
    gradient, found = save_intermediates(jax.grad(f))(b)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    np.testing.assert_allclose(found["b"]["cotangent"], expected, rtol=1e-6)
    np.testing.assert_allclose(grad_wrt(f, "b")(b)["b"], expected, rtol=1e-6)
    np.testing.assert_allclose(plant(f, {"b": 2 * b})(b), 4 * f(b), rtol=1e-6)
    with pytest.raises(CapabilityError, match="linear_solve"):
        save_intermediates(lambda b: f(b, inside=True))(b)


def test_shard_map_and_pmap_on_four_devices():
    """Needs its own process: the number of devices is fixed when JAX starts."""
    script = textwrap.dedent("""
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import AxisType, PartitionSpec as P
        from chainrule.harvest import save_intermediates, sow
        mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

        def local(x, c):
            h = sow(x * 2, "h")
            sow(c, "same")
            sow(jax.lax.psum(h.sum(), ("a", "b")), "total")
            return jnp.sin(h)

        f = jax.shard_map(local, mesh=mesh, in_specs=(P("a", "b"), P()), out_specs=P("a", "b"))
        x = jnp.arange(16.0).reshape(4, 4)
        blocks = np.asarray(2 * x).reshape(2, 2, 2, 2).transpose(0, 2, 1, 3)
        result, found = save_intermediates(f)(x, 3.0)
        np.testing.assert_allclose(result, jnp.sin(2 * x), rtol=1e-5)
        np.testing.assert_allclose(found["h"]["primal"], blocks)
        np.testing.assert_allclose(found["same"]["primal"], np.full((2, 2), 3.0))
        np.testing.assert_allclose(found["total"]["primal"], np.full((2, 2), 240.0))
        _, found = save_intermediates(jax.jit(jax.grad(lambda x: f(x, 3.0).sum())))(x)
        np.testing.assert_allclose(found["h"]["cotangent"], np.cos(blocks), rtol=1e-5)

        # An array that is divided over the devices stays so.
        place = jax.sharding.NamedSharding(mesh, P("a", "b"))
        captured = save_intermediates(lambda x: sow(x * 2, "h") + 1)
        result, found = captured(jax.device_put(x, place))
        np.testing.assert_allclose(found["h"]["primal"], 2 * x)
        for array in (result, found["h"]["primal"]):
            assert array.sharding.is_equivalent_to(place, 2), array.sharding

        if jax.__version_info__ < (0, 8):
            jax.config.update("jax_pmap_shmap_merge", True)
        result, found = save_intermediates(jax.pmap(lambda x: sow(x + 1, "h")))(jnp.arange(4.0))
        np.testing.assert_allclose(found["h"]["primal"], np.arange(4.0) + 1)
    """)
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
