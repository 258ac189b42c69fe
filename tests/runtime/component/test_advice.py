"""Messages that name what an author or a caller has to write."""

import textwrap
import traceback

import numpy as np
import pytest

from chainrule.errors import CapabilityError, ComponentError, DefinitionError, InputError
from chainrule.runtime import (
    Array,
    Differentiable,
    Float64,
    component,
    load_component,
    progress,
)

Number = Differentiable[Float64]
MODULE = """
from pydantic import BaseModel
from chainrule.runtime import Differentiable, Float64

class InputSchema(BaseModel):
    x: Differentiable[Float64]

class OutputSchema(BaseModel):
    y: Differentiable[Float64]

def apply(inputs):
    return {"y": inputs.x ** 2}
"""


@component(derivatives="finite")
def product(
    a: Number, b: Differentiable[Array[("n",), Float64]], c: Number | None = None
) -> Number:
    return a * b.sum() + (0 if c is None else c)


def test_a_jacobian_without_paths_is_of_all_differentiable_paths():
    at = {"a": 2.0, "b": [1.0, 3.0]}
    blocks = product.jacobian(at)
    assert blocks.keys() == {"result"}
    assert blocks["result"].keys() == {"a", "b"}  # c has no value here
    np.testing.assert_allclose(blocks["result"]["a"], 4.0, rtol=1e-8)
    np.testing.assert_allclose(blocks["result"]["b"], [2.0, 2.0], rtol=1e-8)
    assert product.jacobian({**at, "c": 1.0})["result"].keys() == {"a", "b", "c"}
    assert product.jacobian(at, ["a"])["result"].keys() == {"a"}
    assert product.call("jacobian", {"inputs": at})["result"].keys() == {"a", "b"}


def test_outputs_of_unknown_number_are_named():
    @component(derivatives="finite")
    def several(x: Number) -> list[Number]:
        return [x, 2 * x]

    with pytest.raises(InputError, match="name the outputs") as caught:
        several.jacobian({"x": 1.0})
    assert caught.value.code == "bad_paths"
    assert several.jacobian({"x": 1.0}, None, ["result.[1]"])["result.[1]"]["x"] == pytest.approx(2)


def test_what_is_missing_for_a_derivative():
    @component
    def unmarked(x: float) -> float:
        return x

    @component
    def marked(x: Number) -> Number:
        return x

    with pytest.raises(CapabilityError, match="inputs is marked Differentiable"):
        unmarked.jacobian({"x": 1.0})
    with pytest.raises(CapabilityError, match='derivatives="finite"'):
        marked.vector_jacobian_product({"x": 1.0}, ["x"], ["result"], {"result": 1.0})


def test_the_level_of_a_request_around_the_inputs():
    with pytest.raises(InputError, match=r"Drop it: pass \{'a': …"):
        product.apply({"inputs": {"a": 1.0, "b": [1.0]}})


def test_a_forgotten_return():
    @component
    def forgot(x: Number) -> Number:
        x + 1

    with pytest.raises(ComponentError, match="apply returned None"):
        forgot.apply({"x": 1.0})


@pytest.mark.parametrize("file", ["cantera/thermo.pyx", "/opt/lib/site-packages/lib/solver.py"])
def test_an_error_inside_a_library_names_the_line_that_called_it(tmp_path, file):
    library = f"exec(compile('def solve(x):\\n    raise ValueError(x)', {file!r}, 'exec'))\n"
    source = tmp_path / "mine.py"
    source.write_text(library + MODULE.replace("inputs.x ** 2", "solve(inputs.x)"))
    line = source.read_text().splitlines().index('    return {"y": solve(inputs.x)}') + 1
    with pytest.raises(ComponentError, match=rf"at {source}:{line} \(apply\)"):
        load_component(source).apply({"x": 1.0})


@pytest.mark.parametrize(
    "short", ["vjp", "jvp", "hvp", "jac", "vector_jacobian_products", "jacobian_vector_prodcut"]
)
def test_short_names_of_endpoints_are_not_ignored(tmp_path, short):
    source = tmp_path / "mine.py"
    source.write_text(MODULE + f"\ndef {short}(*arguments):\n    return {{}}\n")
    with pytest.raises(DefinitionError, match=f"defines {short}") as caught:
        load_component(source)
    assert caught.value.code == "bad_endpoint"


def test_helpers_may_be_called_jacobians(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text(MODULE + "\ndef jacobians(x):\n    return []\n")
    assert load_component(source).available_endpoints == ["apply", "abstract_eval", "health"]


def test_helpers_with_short_names_may_stand_beside_an_endpoint(tmp_path):
    source = tmp_path / "mine.py"
    endpoint = """
        from jax import jvp  # not of this file

        def vjp(x, u):
            return 2 * x * u

        def vector_jacobian_product(inputs, vjp_inputs, vjp_outputs, cotangent_vector):
            return {"x": vjp(inputs.x, cotangent_vector["y"])}
        """
    source.write_text(MODULE + textwrap.dedent(endpoint))
    found = load_component(source).vector_jacobian_product({"x": 3.0}, ["x"], ["y"], {"y": 1.0})
    assert found["x"] == 6.0


@pytest.mark.parametrize(
    "text", ["import scipy\nsolve = scipy.linalg.solve\n", "import scipy.linalg as sl\n"]
)
def test_a_file_with_the_name_of_the_library_it_imports(text, tmp_path):
    source = tmp_path / "scipy.py"
    source.write_text(text)
    with pytest.raises(DefinitionError, match="give the file another name") as caught:
        load_component(source)
    assert "_loaded" not in str(caught.value)  # the private package that the file is loaded into


def test_a_dependency_that_the_call_misses():
    def f(x: float) -> float:
        import a_package_that_is_not_there

        return a_package_that_is_not_there.solve(x)

    with pytest.raises(ComponentError, match="Install a_package_that_is_not_there into"):
        load_component(f).apply({"x": 1.0})


def test_a_module_takes_finite_differences_by_name(tmp_path):
    def load(more):
        (tmp_path / "square.py").write_text(MODULE + more)
        return load_component(tmp_path / "square.py")

    for declared in ("'finite'", "{'algorithm': 'richardson', 'eps': 1e-2}"):
        square = load(f"derivatives = {declared}\n")
        slope = square.jacobian({"x": 3.0}, ["x"], ["y"])["y"]["x"]
        assert slope == pytest.approx(6.0, rel=1e-6)
        assert str(square.capabilities["jacobian"]) == "derived (finite differences)"
    with pytest.raises(DefinitionError, match='"finite"') as caught:
        load("derivatives = 'fnite'\n")
    assert caught.value.code == "bad_derivatives"
    own = "def jacobian(inputs, jac_inputs, jac_outputs):\n    return {'y': {'x': 2 * inputs.x}}\n"
    with pytest.raises(DefinitionError, match="follow from jacobian") as caught:
        load("derivatives = 'finite'\n" + own)
    assert caught.value.code == "bad_derivatives"
    assert "jacobian" not in load("def derivatives(x):\n    return x\n").available_endpoints


def test_a_result_that_the_schema_forbids_names_the_function(tmp_path):
    @component
    def pair(x: float) -> Number:
        return [x, x]

    @component
    def forgets(x: float) -> float:
        x + 1

    for wrong in (pair, forgets):
        with pytest.raises(
            ComponentError, match=rf"at .*test_advice\.py:\d+ \({wrong.name}\)"
        ) as caught:
            wrong.apply({"x": 1.0})
        assert caught.value.code == "bad_output"
    (tmp_path / "square.py").write_text(MODULE.replace("inputs.x ** 2}", "[1, 2]}"))
    line = 1 + MODULE.splitlines().index("def apply(inputs):")
    with pytest.raises(ComponentError, match=rf"square\.py:{line} \(apply\)"):
        load_component(tmp_path / "square.py").apply({"x": 1.0})
    inside = MODULE.replace('{"y": inputs.x ** 2}', "OutputSchema(y=[1, 2])")
    (tmp_path / "square.py").write_text(inside)
    line = 1 + inside.splitlines().index("    return OutputSchema(y=[1, 2])")
    with pytest.raises(ComponentError, match=rf"square\.py:{line} \(apply\)"):
        load_component(tmp_path / "square.py").apply({"x": 1.0})


def test_progress_of_steps_says_what_is_meant():
    @component
    def slow(n: int) -> int:
        for k in range(n):
            progress(k, n)
        return n

    with pytest.raises(
        DefinitionError, match=r"progress\(k / n\)`.* at .*test_advice\.py:\d+ \(slow\)"
    ) as caught:
        slow.apply({"n": 3})
    assert caught.value.code == "bad_progress"


def test_only_a_file_that_hides_a_library_is_told_so(tmp_path, monkeypatch):
    (tmp_path / "oven.py").write_text("from chainrule import oven_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DefinitionError, match="cannot import name") as caught:
        load_component(tmp_path / "oven.py")
    assert "name of the library" not in caught.value.message


def test_a_component_that_is_missing_is_looked_for_beside(tmp_path):
    (tmp_path / "square.py").write_text(MODULE)
    with pytest.raises(DefinitionError, match=r"Did you mean '.*square\.py'") as caught:
        load_component(tmp_path / "sqare")
    assert caught.value.code == "module_missing"
    with pytest.raises(CapabilityError, match="Did you mean 'apply'"):
        load_component(tmp_path / "square.py").call("aply", {"inputs": {"x": 1.0}})


def test_inputs_that_are_not_one_dictionary():
    with pytest.raises(InputError, match="apply has no argument 'a'; it has inputs, run_id"):
        product.apply(a=2.0, b=[1.0])
    with pytest.raises(
        InputError, match=r"found a NumPy array f64\[1\]\. Inputs are one dictionary"
    ):
        product.apply(np.ones(1), np.ones(1))


def test_a_misspelt_argument_of_the_decorator():
    with pytest.raises(InputError, match="Did you mean 'derivatives'") as caught:
        component(derivative="finite")
    assert caught.value.code == "bad_option"


def test_a_refused_input_shows_nothing_of_pydantic():
    with pytest.raises(InputError) as caught:
        product.apply({"a": 1.0})
    assert "ValidationError" not in "".join(traceback.format_exception(caught.value))
