import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule.stateful as cs
from chainrule import ChainruleError
from chainrule.stateful import CheckpointError


class Cache(cs.ParamDict, cs.ParamCache):
    pass


class Net(cs.Module):
    def __init__(self, fill=0.0, extra=False):
        self.layers = [cs.Param(jnp.full((2, 3), fill)), cs.Param(jnp.full(3, fill, jnp.bfloat16))]
        self.tied = self.layers[0]
        self.state = cs.Param({"a": jnp.full(2, fill), "b": (jnp.full((), int(fill)),)})
        self.key = cs.Param(jax.random.key(int(fill)))
        self.rng = cs.RandomKeyGenerator(int(fill))
        self.unset = cs.Param(None)
        self.cache = Cache()
        if extra:
            self.extra = cs.Param(jnp.ones(1))


def equal(a, b):
    for p, q in zip(cs.tree_extract(a), cs.tree_extract(b), strict=True):
        for x, y in zip(jax.tree.leaves(p.value), jax.tree.leaves(q.value), strict=True):
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                x, y = jax.random.key_data(x), jax.random.key_data(y)
            if x.dtype != y.dtype or not np.array_equal(np.asarray(x), np.asarray(y)):
                return False
    return True


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_round_trip(tmp_path, format):
    model, other = Net(7.0), Net(0.0)
    model.cache["u"] = jnp.ones(2)
    cs.save(tmp_path / "model", model, format=format)
    cs.save(tmp_path / "model", model, format=format)  # replaces
    report = cs.load(tmp_path / "model", other)
    assert not report.missing
    assert not report.unexpected
    assert "u" not in other.cache
    other.cache["u"] = jnp.ones(2)
    assert equal(model, other)
    assert other.tied is other.layers[0]


def test_optimiser_state(tmp_path):
    p, q = cs.Param(jnp.ones(2)), cs.Param(jnp.zeros(2))
    a, b = cs.Optim(optax.adam(0.1)), cs.Optim(optax.adam(0.1))
    a.step(p, jnp.ones(2))
    b.init(q)
    cs.save(tmp_path / "all", {"p": p, "optim": a})
    cs.load(tmp_path / "all", {"p": q, "optim": b})
    a.step(p, jnp.ones(2))
    b.step(q, jnp.ones(2))
    np.testing.assert_array_equal(p.get(), q.get())


def test_everything_that_differs_is_reported_and_nothing_set(tmp_path):
    cs.save(tmp_path / "m", Net(7.0, extra=True))
    target = Net(0.0)
    target.new = cs.Param(jnp.ones(2))
    target.layers[1] = cs.Param(jnp.zeros(4))
    before = target.state.get()["a"]
    with pytest.raises(CheckpointError) as caught:
        cs.load(tmp_path / "m", target)
    text = str(caught.value)
    assert "`new`" in text
    assert "`extra`" in text
    assert "f32[4] in the model and bf16[3]" in text
    assert target.state.get()["a"] is before
    target.layers[1] = cs.Param(jnp.zeros(3, jnp.bfloat16))
    report = cs.load(tmp_path / "m", target, strict=False)
    assert (report.missing, report.unexpected) == (("new",), ("extra",))
    assert float(target.tied[0, 0]) == 7
    with pytest.raises(ChainruleError) as caught:
        cs.load(tmp_path / "nothing", target)
    assert caught.value.code == "file_missing"


def test_renamed_modules(tmp_path):
    cs.save(tmp_path / "m", {"old": {"encoder": Net(7.0)}})
    target = {"new": Net(0.0)}
    cs.load(tmp_path / "m", target, mapping={"old.encoder": "new"})
    assert float(target["new"].tied[0, 0]) == 7
    target = {"new": Net(0.0)}
    cs.load(tmp_path / "m", target, mapping=lambda path: path.replace("old.encoder", "new"))
    assert float(target["new"].tied[0, 0]) == 7


def test_sharing_may_differ_between_file_and_model(tmp_path):
    cs.save(tmp_path / "tied", Net(7.0))
    loose = Net(0.0)
    loose.tied = cs.Param(jnp.zeros((2, 3)))
    cs.load(tmp_path / "tied", loose)
    assert float(loose.tied[0, 0]) == 7
    assert float(loose.layers[0][0, 0]) == 7


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m"
    cs.save(path, cs.Param(jnp.ones(2)))
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        cs.save(path, cs.Param(jnp.zeros(2)))
    assert [f.name for f in tmp_path.iterdir()] == ["m"]
