"""`gradient_flow`: the values and cotangents on the links of a pipeline are those of JAX."""

import io
from html import unescape

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tests.view.pages import data_of

import chainrule
from chainrule import sow, view
from chainrule._codec import decode_array
from chainrule.errors import InputError
from chainrule.runtime import Array, Differentiable, Float32

Vector = Differentiable[Array[("n",), Float32]]
X = jnp.array([0.1, 0.2, 0.4])


@chainrule.component(framework="torch")
def stiffen(speed: Vector) -> Vector:
    return speed * speed.abs() + 0.5


@chainrule.component(derivatives="finite")
def drag(speed: Vector, scale: float = 2.0) -> Vector:
    return scale * np.sin(speed)


def call(component, x):
    return chainrule.apply_component(component, {"speed": x})["result"]


def cost(parameters, power):
    with jax.named_scope("prepare"):
        x = parameters["x"] ** power
    y = sow(call(drag, x), "drag")
    with jax.named_scope("cost"):
        return jnp.sum(y * x)


def links_of(picture):
    names = [part.name for part in picture.parts]

    def named(place):
        return place if isinstance(place, str) else names[place]

    return {(named(link.source), named(link.target)): link for link in picture.links}


def test_values_and_cotangents_on_every_link():
    """y = 2 sin x with x = p², the cost Σ x y: by hand, the contribution of each reader on its own link."""
    picture = view.gradient_flow(cost, {"x": X, "unused": jnp.ones(2)}, 2)
    links = links_of(picture)
    x = np.asarray(X, float) ** 2
    y = 2 * np.sin(x)
    expected = {
        ("parameters", "prepare"): (X, 2 * X * (y + x * 2 * np.cos(x))),
        ("power", "prepare"): (2, None),
        ("prepare", "drag"): (x, x * 2 * np.cos(x)),
        ("prepare", "cost"): (x, y),
        ("drag", "cost"): (y, x),
        ("cost", "result"): (np.sum(x * y), 1.0),
    }
    assert set(links) == set(expected)
    for ends, (value, cotangent) in expected.items():
        (flow,) = links[ends].flows
        np.testing.assert_allclose(flow.value, value, rtol=1e-5)
        np.testing.assert_allclose(links[ends].value_norm, np.linalg.norm(value), rtol=1e-5)
        if cotangent is None:
            assert links[ends].cotangent_norm is None
        else:  # those of `drag` are differences
            np.testing.assert_allclose(flow.cotangent, cotangent, rtol=2e-2)
            norm = np.linalg.norm(flow.cotangent)
            np.testing.assert_allclose(links[ends].cotangent_norm, norm, rtol=1e-5)
    gradient = jax.grad(cost)({"x": X, "unused": jnp.ones(2)}, 2)["x"]
    np.testing.assert_allclose(links["parameters", "prepare"].flows[0].cotangent, gradient, 1e-6)
    assert [links[ends].flows[0].name for ends in expected] == ["x", "", "speed", "", "drag", ""]


def test_boxes_say_framework_place_and_time():
    def f(x):
        return jnp.sum(call(drag, call(stiffen, x)))

    picture = view.gradient_flow(f, X, measure=True)
    first, second, last = picture.parts
    assert (first.framework, second.framework, last.framework) == ("PyTorch", "NumPy", None)
    assert "in this process" in first.lines
    assert list(first.seconds) == list(second.seconds) == ["apply", "vjp"]
    assert list(last.seconds) == ["forward", "backward"]
    assert min(s for part in picture.parts for s in part.seconds.values()) > 0
    assert any(line.startswith("apply ") and ", vjp " in line for line in first.lines)


def test_no_box_is_called_lambda():
    double = chainrule.from_callable(
        lambda x: 2 * x, vjp=lambda x, u: (2 * u,), abstract=lambda x: x
    )
    picture = view.gradient_flow(lambda x: (lambda y: jnp.sum(double(jnp.sin(y))))(x) ** 2, X)
    names = [part.name for part in picture.parts]
    assert not any("<" in name for name in names)
    assert names[1].startswith("lambda, test_gradient_flow.py, line ")


def test_calls_of_one_component_are_told_apart():
    double = chainrule.from_callable(
        lambda x: 2 * x, vjp=lambda x, u: (2 * u,), abstract=lambda x: x, name="double"
    )
    picture = view.gradient_flow(lambda x: jnp.sum(double(double(x))), X)
    assert [picture.label(k) for k in (0, 1)] == ["double 1", "double 2"]
    drawn = picture.svg()
    assert ">double 1<" in drawn
    assert ">double 2<" in drawn
    text = str(picture)  # as `print` shows it
    assert "double 1" in text
    assert "cotangent" in text
    assert max(map(len, text.splitlines())) <= 79


def test_a_lambda_in_a_cell_is_named_by_its_line():
    cells = ("<ipython-input-44-d560397086ad>", "<stdin>", "/tmp/ipykernel_12/345.py")
    for file in cells:
        code = compile("\n\nfun = lambda x: 2 * x ** 2", file, "exec")
        scope = {}
        exec(code, scope)
        assert [part.name for part in view.pipeline(scope["fun"], 1.0).parts] == ["line 3"]


def network(x):
    for k in range(20):
        with jax.named_scope(f"block {k // 5}"):
            x = sow(jnp.tanh(0.4 * x), f"layer {k}")
    return jnp.sum(sow(x**2, "cost"))


def test_sown_values_divide_a_network():
    picture = view.gradient_flow(jax.jit(network), jnp.ones(3))
    sown = [link for link in picture.links if link.flows[0].name.startswith("layer")]
    _, found = chainrule.save_intermediates(jax.grad(network))(jnp.ones(3))
    for link in sown:
        entry = found[link.flows[0].name]
        np.testing.assert_allclose(link.value_norm, jnp.linalg.norm(entry["primal"]), rtol=1e-5)
        expected = jnp.linalg.norm(entry["cotangent"])
        np.testing.assert_allclose(link.cotangent_norm, expected, rtol=1e-5)
    assert len(sown) == 20
    assert [part.stage for part in picture.parts[:20]] == [f"block {k // 5}" for k in range(20)]


def test_large_pipelines_are_matrices():
    picture = view.gradient_flow(network, jnp.ones(3))
    nodes = len(picture.parts) + 2
    drawn = picture.svg()
    assert drawn.count("block 1 (layer ") == 5
    assert "data-name" not in drawn
    data = data_of(unescape(picture.html()))
    assert data["isMatrix"] is True
    assert len(data["nodes"]) == nodes
    levels = [link["value"] for link in data["links"]][:20]  # norms decrease from layer to layer
    assert levels[0] == 4
    assert levels[-1] < 4
    assert levels == sorted(levels, reverse=True)


def test_what_is_not_finite_is_marked(tmp_path):
    picture = view.gradient_flow(lambda x: sow(jnp.log(x), "log") * 2, 0.0)
    (link,) = (link for link in picture.links if link.flows[0].name == "log")
    assert (link.value_norm, link.cotangent_norm, link.nonfinite) == (np.inf, 2.0, 1)
    data = data_of(picture.save(tmp_path / "flow.html").read_text())
    (shown,) = (each for each in data["links"] if each["flows"][0]["name"] == "log")
    assert (shown["value"], shown["valueNorm"]) == ("odd", "inf")
    assert decode_array(shown["flows"][0]["value"]) == -np.inf
    assert "#b91c1c" in picture.svg()
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(picture)
    assert "inf" in console.export_text()


def test_pages_hold_small_copies():
    picture = view.gradient_flow(lambda x: jnp.sum(sow(x * x, "big") * 2), jnp.ones((300, 300)))
    flow = data_of(unescape(picture.html()))["links"][0]["flows"][0]
    assert decode_array(flow["value"]).shape == (60, 60)
    assert flow["valueNorm"] == 300.0
    assert len(picture.html()) < 500_000


def test_arguments_of_all_kinds():
    def f(model, key, flag, z):
        noise = jax.random.normal(key, (3,))
        y = model["activation"](model["weight"] * noise) * jnp.abs(z)
        return jnp.sum(jnp.where(flag, y, -y)) + jnp.sum(model["empty"])

    model = {"weight": X, "activation": jnp.tanh, "name": "f", "empty": jnp.ones((0, 2))}
    picture = view.gradient_flow(f, model, jax.random.key(0), True, 3 + 4j)
    flows = {flow.name: flow for link in picture.links for flow in link.flows if flow.name}
    expected = jax.grad(lambda weight: f({**model, "weight": weight}, jax.random.key(0), True, 5))(
        X
    )
    np.testing.assert_allclose(flows["weight"].cotangent, expected, rtol=1e-5)
    sources = {link.source: link for link in picture.links}
    assert sources["key"].value_norm is None
    assert sources["z"].value_norm == 5.0
    assert sources["flag"].cotangent_norm is None
    picture.html()


@pytest.mark.parametrize(
    ("fun", "args", "code", "words"),
    [
        (jnp.sin, (X,), "not_scalar", r"f32\[3\]"),
        (lambda x: (x, x), (1.0,), "not_scalar", r"f32\[\], f32\[\]"),
        (jnp.sum, (jax.ShapeDtypeStruct((3,), "f4"),), "needs_values", "view.pipeline"),
        ({"layer": {}}, (), "bad_argument", "takes a function"),
    ],
)
def test_refusals(fun, args, code, words):
    with pytest.raises(InputError, match=words) as caught:
        view.gradient_flow(fun, *args)
    assert caught.value.code == code


def test_constants_and_whole_numbers():
    assert view.gradient_flow(lambda x: 1.0, X).links == ()
    (link,) = view.gradient_flow(lambda k: jnp.sum(jnp.arange(3) * 0.5), 3).links or (None,)
    assert link is None
    picture = view.gradient_flow(lambda k: k * 0.5, 3)
    assert [link.cotangent_norm for link in picture.links] == [None, None]
