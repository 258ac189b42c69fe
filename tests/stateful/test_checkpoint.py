import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chainrule.stateful as cs
from chainrule import ChainruleError, InputError
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


def test_a_file_is_readable_for_those_the_umask_says(tmp_path):
    reference = tmp_path / "reference"
    reference.touch()
    cs.save(tmp_path / "model", Net())
    assert (tmp_path / "model").stat().st_mode == reference.stat().st_mode


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_loading_keeps_the_dtype_and_the_devices_of_the_model(tmp_path, format):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), "d")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    wide, plain = cs.Param(jnp.arange(2.0)), cs.Param(jnp.zeros(2))
    cs.save(tmp_path / "model", wide, format=format)
    wide.set(jax.device_put(jnp.zeros(2), sharding))
    cs.load(tmp_path / "model", wide)
    assert wide.get().sharding == sharding
    np.testing.assert_array_equal(wide, [0.0, 1.0])
    cs.save(tmp_path / "model", wide, format=format)  # divided
    cs.load(tmp_path / "model", plain)
    assert not plain.get().committed
    with jax.enable_x64(True):
        cs.save(tmp_path / "double", cs.Param(jnp.ones(2, jnp.float64)), format=format)
    with pytest.raises(CheckpointError, match=r"f32\[2\] in the model and f64\[2\] in the file"):
        cs.load(tmp_path / "double", plain)


def test_an_orbax_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    import orbax.checkpoint as ocp

    cs.save(tmp_path / "model", Net(7.0), format="orbax")

    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(ocp.CompositeCheckpointHandler, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        cs.save(tmp_path / "model", Net(1.0), format="orbax")
    other = Net(0.0)
    cs.load(tmp_path / "model", other)
    assert equal(other, Net(7.0))
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_an_orbax_folder_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch):
    path, rename = tmp_path / "model", os.rename
    cs.save(path, Net(7.0), format="orbax")

    def fails_for_the_new(source, target):
        if str(source).endswith("new"):
            raise OSError("no room")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails_for_the_new)
    with pytest.raises(OSError, match="no room"):
        cs.save(path, Net(1.0), format="orbax")
    monkeypatch.undo()
    loaded = Net()
    cs.load(path, loaded)
    assert equal(loaded, Net(7.0))
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("damage", [lambda p: p.write_bytes(b"abc"), lambda p: p.mkdir()])
def test_what_is_no_checkpoint_is_said_so(tmp_path, damage):
    damage(tmp_path / "model")
    with pytest.raises(ChainruleError, match="damaged") as caught:
        cs.load(tmp_path / "model", Net())
    assert caught.value.code == "file_damaged"


def test_dtypes_and_formats_that_cannot_be_written(tmp_path):
    small = cs.Param(jnp.ones(2, jnp.float8_e4m3fn))
    with pytest.raises(ChainruleError, match='format="orbax"'):
        cs.save(tmp_path / "small", small)
    cs.save(tmp_path / "small", small, format="orbax")
    cs.load(tmp_path / "small", small)
    with pytest.raises(ChainruleError, match="'npz'"):
        cs.save(tmp_path / "model", small, format="npz")


def test_state_without_arrays_and_state_not_yet_made(tmp_path):
    w = cs.Param(jnp.ones(2))
    plain, adam = cs.Optim(optax.sgd(0.1)), cs.Optim(optax.adam(0.1))
    plain.init(w)
    adam.init(w)
    cs.save(tmp_path / "plain", plain)
    cs.load(tmp_path / "plain", plain)
    cs.save(tmp_path / "adam", adam)
    with pytest.raises(CheckpointError, match=r"optim\.init\(model\)"):
        cs.load(tmp_path / "adam", cs.Optim(optax.adam(0.1)))


def test_a_generator_nobody_drew_from_is_saved(tmp_path):
    generator, other = cs.RandomKeyGenerator(7), cs.RandomKeyGenerator(8)
    cs.save(tmp_path / "generator", generator)
    cs.load(tmp_path / "generator", other)
    assert generator() == other()


def plain_tree(step=0, scale=0.0):
    return {
        "m": Net(),
        "step": step,
        "ratio": 0.1 * step,
        "done": bool(step),
        "name": f"run {step}",
        "ema": {
            "w": jnp.full(2, scale),
            "history": [np.float64(scale), jnp.asarray(scale, jnp.bfloat16)],
        },
        "state": optax.adam(0.1).init({"x": jnp.full(3, scale)}),
        "key": jax.random.key(step),
        "nothing": None,
    }


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_plain_values_are_saved_and_loaded(tmp_path, format):
    saved, fresh = plain_tree(7, 2.5), plain_tree()
    inner = fresh["ema"]
    cs.save(tmp_path / "run", saved, format=format)
    report = cs.load(tmp_path / "run", fresh)
    assert {"step", "ema.w", "ema.history.[0]", "m.state"} <= set(report.loaded)
    assert not report.missing
    assert not report.unexpected
    assert [fresh[k] for k in ("step", "ratio", "done", "name")] == [7, 0.1 * 7, True, "run 7"]
    assert type(fresh["step"]) is int
    assert fresh["ema"] is inner
    assert jax.tree.structure(fresh["state"]) == jax.tree.structure(saved["state"])
    jax.tree.map(np.testing.assert_array_equal, fresh["state"], saved["state"])
    jax.tree.map(np.testing.assert_array_equal, fresh["ema"], saved["ema"])
    assert jax.random.key_data(fresh["key"]).tolist() == jax.random.key_data(saved["key"]).tolist()


def test_keys_of_mixed_types_are_refused(tmp_path):
    tree = {"step": 1, "ema": [{"a": jnp.ones(2), 1: jnp.ones(2)}]}
    for call in (cs.save, cs.load):
        with pytest.raises(InputError, match="types int, str") as caught:
            call(tmp_path / "m.safetensors", tree)
        assert caught.value.path == "ema.[0]"
    with pytest.raises(InputError, match="given ones"):
        cs.save(tmp_path / "m.safetensors", {"a": cs.Param(1.0), 1: cs.Param(2.0)})
    cs.save(tmp_path / "m.safetensors", {2: cs.Param(1.0), 1: {"a": 3.0}})


def test_plain_values_that_do_not_fit_change_nothing(tmp_path):
    cs.save(tmp_path / "run", {"step": 7, "w": jnp.ones(2)})
    for tree in ({"step": "text", "w": jnp.zeros(2)}, {"step": 0, "w": jnp.zeros(3)}, {"step": 0},
                 {"step": 0, "w": jnp.zeros(2), "more": 1}):  # fmt: skip
        before = dict(tree)
        with pytest.raises(cs.CheckpointError):
            cs.load(tmp_path / "run", tree)
        assert tree.keys() == before.keys()
        assert all(tree[key] is before[key] for key in tree)
    taken = {"step": None, "w": None}
    cs.load(tmp_path / "run", taken)
    assert taken["step"] == 7
    assert taken["w"].tolist() == [1, 1]
    cs.save(tmp_path / "pair", (Net(), 7))
    with pytest.raises(cs.CheckpointError, match="dictionary"):
        cs.load(tmp_path / "pair", (Net(), 0))


def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"`activation` is a function"):
        cs.save(tmp_path / "run", {"m": Net(), "activation": lambda x: x})
    assert not (tmp_path / "run").exists()


def test_arrays_without_elements(tmp_path):
    cs.save(tmp_path / "run", {"p": cs.Param(jnp.zeros((0, 3)))})
    fresh = {"p": cs.Param(jnp.zeros((0, 3)))}
    assert cs.load(tmp_path / "run", fresh).loaded == ("p",)
    with pytest.raises(InputError, match="`p`, which has no elements"):
        cs.save(tmp_path / "folder", fresh, format="orbax")


SCALARS = [
    np.bool_(True), np.int8(-7), np.int16(-7), np.int32(-7), np.int64(5_000_000_000), np.uint8(200),
    np.uint16(7), np.uint32(4_000_000_000), np.uint64(2**63 + 1), np.float16(0.1), np.float32(0.1),
    np.float64(0.1), np.complex64(0.1 + 2j), np.complex128(0.1 + 2j), jnp.bfloat16(0.1),
]  # fmt: skip


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_numpy_values_stay_what_they_are(tmp_path, format, x64):
    values = [np.asarray(v)[()] for v in SCALARS]
    if format == "safetensors":
        values = [v for v in values if v.dtype != np.complex128]
    tree = {
        "scalars": values,
        "zero_d": [np.asarray(v) for v in values],
        "arrays": [np.stack([v, v]) for v in values],
    }
    fresh = jax.tree.map(np.zeros_like, tree)
    fresh["scalars"] = [np.zeros_like(v)[()] for v in values]
    unset = {"scalars": [None] * len(values), "zero_d": None, "arrays": [None] * len(values)}
    unset["zero_d"] = [None] * len(values)
    with jax.enable_x64(x64):
        cs.save(tmp_path / "run", tree, format=format)
        cs.load(tmp_path / "run", fresh)
        cs.load(tmp_path / "run", unset)
    for kind, expected in tree.items():
        for old, new, taken in zip(expected, fresh[kind], unset[kind], strict=True):
            assert type(new) is type(old)
            assert new.dtype == taken.dtype == old.dtype
            np.testing.assert_array_equal(new, old)
            np.testing.assert_array_equal(np.asarray(taken), old)


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_arrays_of_64_bits_stay_so_where_x64_is_off(tmp_path, format):
    with jax.enable_x64(True):
        saved = {"w": cs.Param(jnp.full(2, 0.1)), "n": jnp.full(2, 5_000_000_000)}
        fresh = {"w": cs.Param(jnp.zeros(2)), "n": jnp.zeros(2, int)}
        placed = jax.device_put(jnp.zeros(2, int), jax.devices()[0])
    cs.save(tmp_path / "run", saved, format=format)
    for tree in (fresh, fresh | {"n": placed}):
        cs.load(tmp_path / "run", tree)
        assert tree["w"].value.dtype == np.float64
        assert tree["n"].dtype == np.int64
        np.testing.assert_array_equal(np.asarray(tree["w"].value), np.full(2, 0.1))
        np.testing.assert_array_equal(np.asarray(tree["n"]), np.full(2, 5_000_000_000))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("format", ["safetensors", "orbax"])
def test_a_checkpoint_may_hold_numbers_and_text_only(tmp_path, format, x64):
    saved = {"step": 7, "z": 0.1 - 0.0j, "rest": [2**70, 0.1, float("inf"), True, "text"]}
    fresh = {"step": 0, "z": 0j, "rest": [0, 0.0, 0.0, False, ""]}
    with jax.enable_x64(x64):
        cs.save(tmp_path / "run", saved, format=format)
        cs.load(tmp_path / "run", fresh)
        assert repr(fresh) == repr(saved)
        cs.save(tmp_path / "run", {"w": jnp.ones(2), "z": 1j}, format=format)
        with pytest.raises(CheckpointError, match="`z` is float in the model"):
            cs.load(tmp_path / "run", {"w": jnp.ones(2), "z": 1.0})
    cs.save(tmp_path / "none", {}, format=format)
    assert cs.load(tmp_path / "none", {}).loaded == ()


@pytest.mark.parametrize("format", ["safetensors", "orbax"])
@pytest.mark.parametrize(
    "value", [np.datetime64("2020-01-01"), np.array(["a"]), np.str_("a"), np.longdouble(1)]
)
def test_values_of_numpy_that_no_format_has_are_refused(tmp_path, format, value):
    with pytest.raises(InputError, match="`v`"):
        cs.save(tmp_path / "run", {"v": value}, format=format)
    assert not (tmp_path / "run").exists()


def test_an_orbax_folder_without_its_arrays_is_damaged(tmp_path):
    cs.save(tmp_path / "run", {"w": jnp.ones(2), "step": 1}, format="orbax")
    shutil.rmtree(tmp_path / "run" / "arrays")
    with pytest.raises(ChainruleError) as caught:
        cs.load(tmp_path / "run", {"w": jnp.ones(2), "step": 1}, strict=False)
    assert caught.value.code == "file_damaged"
