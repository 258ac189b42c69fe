import doctest
import importlib

import pytest

import chainrule.stateful as cs

NAMES = """
    BaseParam CheckpointError Checkpoints DynamicParam GradientError LoadReport M Mask Mode Module Optim
    OptimState Param ParamCache ParamDict RKG RKGState RandomKeyGenerator StaticParam TrackingError
    checkpoint clone cond custom_jvp custom_vjp eval_shape fori_loop frozen get get_values grad hessian
    jacfwd jacrev jit jvp layers linearize load map precision save scan set_ set_values shard_map shared
    static summary switch tree_extract tree_inject tree_ref tree_unref value_and_grad vjp vmap while_loop
""".split()


def test_the_surface_is_exactly_this():
    assert set(cs.__all__) == set(NAMES)
    assert sorted(set(cs.__all__)) == sorted(cs.__all__)
    assert all(getattr(cs, name).__doc__ for name in NAMES)


MODULES = """
    _params _module _random _masks _jit _mapping _derivatives _control_flow _optim _precision _checkpoint
    _tree_tools _summary layers._layer
""".split()


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_run(name):
    module = importlib.import_module(f"chainrule.stateful.{name}")
    names = {"RandomKeyGenerator": cs.RandomKeyGenerator}
    result = doctest.testmod(module, extraglobs=names)
    assert result.attempted > 0
    assert result.failed == 0
