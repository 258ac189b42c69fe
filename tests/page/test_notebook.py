"""A notebook that a real kernel runs, and the page that nbconvert makes of it: what a reader of it sees."""

import re
import sys

import nbformat
import pytest
from nbclient import NotebookClient
from nbconvert import HTMLExporter

CELLS = {
    "prepare": """
import jax, jax.numpy as jnp, numpy as np, optax
import chainrule
from chainrule import apply_component, component, jacobian, view
from chainrule.elimination import explain_jacobian
from chainrule.runtime import Array, Differentiable, Float64
from chainrule.runtime.testing import check_gradients
jax.config.update("jax_enable_x64", True)
""",
    "component": """
Field = Differentiable[Array[("n", "m"), Float64, "K"]]
@component(derivatives="finite")
def heat(source: Field, conductivity: Differentiable[Float64] = 2.0) -> Field:
    "Temperatures of a plate."
    return source / conductivity + 0.1 * np.roll(source, 1, 0)
heat
""",
    "result": """
heat.apply({"source": np.add.outer(np.arange(20.0), np.arange(30.0))})
""",
    "text": """
print(heat.apply({"source": np.ones((2, 3))}))
""",
    "check": """
check_gradients(heat, {"inputs": {"source": np.ones((3, 4))}})
""",
    "explain": """
explain_jacobian(lambda x: jnp.diff(x**2), jnp.ones(50))
""",
    "jacobian": """
jacobian(lambda x: jnp.diff(x**2), sparse=True)(jnp.ones(50))
""",
    "bar": """
from chainrule import _progress
_progress.PATIENCE_S = 0.0  # bars are for long work
_ = heat.jacobian({"source": np.ones((30, 30))})
""",
    "job": """
_progress.PATIENCE_S = 60.0
with chainrule.Component.from_api(heat) as handle:
    _ = handle.submit("jacobian", {"source": np.ones((20, 20))}).result(progress=True)
""",
    "watch": """
def cost(source):
    return jnp.sum((apply_component(heat, {"source": source})["result"] - 1.0) ** 2)
source, optimiser = jnp.zeros((4, 6)), optax.sgd(0.5)
state, step = optimiser.init(source), jax.value_and_grad(cost)
with chainrule.watch("A plate gets warm") as run:
    for k in range(6):
        value, gradient = step(source)
        run(k, cost=value, gradients={"heat": gradient}, fields={"source": source})
        updates, state = optimiser.update(gradient, state)
        source = optax.apply_updates(source, updates)
""",
    "pipeline": """
view.gradient_flow(cost, source)
""",
    "typo in a name": """
heat.apply({"sorce": np.ones((3, 4))})
""",
    "wrong shape": """
jax.grad(lambda x: apply_component(heat, {"source": x})["result"].sum())(jnp.ones(3))
""",
    "failure of the author": """
@component(derivatives="finite")
def stiff(x: Differentiable[Float64]) -> Differentiable[Float64]:
    table = {"E": 3.0}
    return x * table["nu"]
stiff.apply({"x": 1.0})
""",
    "failure in a compiled program": """
jax.jit(lambda x: apply_component(stiff, {"x": x})["result"])(1.0)
""",
    "unreachable": """
chainrule.Component.from_url("http://127.0.0.1:9").apply({})
""",
}
TITLES = {name: number for number, name in enumerate(CELLS)}
FAILING = [name for name in CELLS if list(CELLS).index(name) >= TITLES["typo in a name"]]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        # The kernel is this interpreter, and reads no settings of the user's.
        patch.setenv("JUPYTER_CONFIG_DIR", str(folder / "settings"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=600, allow_errors=True, resources=resources).execute()
    return notebook


@pytest.fixture(scope="module")
def outputs(notebook):
    """Title of a cell → its outputs."""
    return {name: notebook.cells[number].outputs for name, number in TITLES.items()}


def plain(lines):
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))


def test_no_cell_fails_that_should_not(outputs):
    for name, shown in outputs.items():
        errors = [plain(each.traceback) for each in shown if each.output_type == "error"]
        assert bool(errors) == (name in FAILING), (name, errors)
        streams = [each.text for each in shown if each.output_type == "stream" and name != "text"]
        assert streams == [], name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("component", ["heat", "Temperatures of a plate", "f64[n,m] K"]),
        ("result", ["f64[20,30]", "min 0", "<img", "K"]),
        ("check", ["passed", "vector_jacobian_product"]),
        ("explain", ["<table", "elimination"]),
        ("jacobian", ["<svg", "98 of 2"]),
        ("pipeline", ["<iframe"]),
    ],
)
def test_what_a_cell_shows(outputs, name, words):
    (shown,) = outputs[name]
    assert all(word in shown.data["text/html"] for word in words)
    assert len(shown.data["text/html"]) < 500_000


def test_a_result_is_text_in_a_print_and_a_dictionary_in_the_repr(outputs):
    (printed,) = outputs["text"]
    assert printed.text.split()[:2] == ["result", "f64[2,3]"]
    assert outputs["result"][0].data["text/plain"].startswith("{'result': array(")


@pytest.mark.parametrize("name", ["bar", "job"])
def test_a_bar_is_one_output_without_widgets(outputs, name):
    (shown,) = outputs[name]
    assert shown.data["text/html"].startswith("<progress ")
    assert "100 %" in shown.data["text/html"]


def test_a_watched_run_stays_in_the_notebook(outputs):
    (shown,) = outputs["watch"]
    assert "A plate gets warm" in shown.data["text/html"]
    assert "http://127.0.0.1" not in shown.data["text/html"]


@pytest.mark.parametrize("name", FAILING)
def test_an_error_shows_lines_of_the_user_and_the_message(outputs, name):
    (error,) = outputs[name]
    text = plain(error.traceback)
    assert "Cell In[" in text
    assert "src/chainrule" not in text
    assert "pydantic" not in text
    last_line = CELLS[name].strip().splitlines()[-1]
    assert last_line in text
    if name.startswith("failure"):
        assert '    return x * table["nu"]' in text
        assert "KeyError: 'nu'" in text
    else:
        assert len(text.splitlines()) < 15, text


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_page_of_the_notebook(notebook, open_page, tmp_path, serve_folder, width, theme):
    body, _ = HTMLExporter(theme=theme, embed_images=True).from_notebook_node(notebook)
    body = re.sub(r'<script[^>]*src="http[^>]*></script>', "", body)  # MathJax, of another host
    (tmp_path / "index.html").write_text(body)
    page = open_page(serve_folder(tmp_path))
    page.set_viewport_size({"width": width, "height": 900})
    page.frame_locator('iframe[title="A plate gets warm"]').locator("h1").first.wait_for()
    frames = page.locator("iframe")
    for number in range(frames.count()):
        inside = frames.nth(number).content_frame
        assert inside.locator("html").evaluate("page => page.scrollWidth <= page.clientWidth + 1")
        box = frames.nth(number).bounding_box()
        assert box["x"] + box["width"] <= width
