import doctest
import importlib

import pytest

import chainrule.stateful as cs

NAMES = """
    Param ParamDict ParamCache StaticParam static frozen Module RKG RandomKeyGenerator jit vmap grad
    value_and_grad scan while_loop cond switch jvp vjp jacfwd jacrev hessian linearize checkpoint custom_vjp
    shard_map eval_shape Jit Vmap Grad ValueAndGrad Scan WhileLoop Cond Switch Mask M tree_extract tree_inject
    tree_ref tree_unref Optim save load summary layers shared
""".split()


def test_everything_promised_is_exported():
    assert set(NAMES) <= set(cs.__all__)
    assert all(hasattr(cs, name) for name in cs.__all__)
    assert sorted(set(cs.__all__)) == sorted(cs.__all__)
    assert all(getattr(cs, name).__doc__ for name in NAMES if name != "RKG")


@pytest.mark.parametrize("name", ["_params", "_module", "_random", "_masks", "_jit", "_vmap", "_grad",
                                  "_loops", "_optim", "_summary", "layers._layer"])  # fmt: skip
def test_docstrings_run(name):
    module = importlib.import_module(f"chainrule.stateful.{name}")
    names = {"RandomKeyGenerator": cs.RandomKeyGenerator}
    result = doctest.testmod(module, extraglobs=names)
    assert result.attempted > 0
    assert result.failed == 0
