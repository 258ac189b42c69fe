"""ONNX models as components, against onnxruntime and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from chainrule import InputError, apply_component
from chainrule.errors import CapabilityError, DefinitionError
from chainrule.runtime import from_onnx, load_component

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

F32, F64, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64
I32 = TensorProto.INT32
GENERATOR = np.random.default_rng(1)


def save(folder, nodes, inputs, outputs, constants=None, opset=18, name="model"):
    """A model file. Inputs and outputs are `{name: (type, shape)}`."""
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, *v) for k, v in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    versions = {"": opset, "ai.onnx.ml": 3, "com.microsoft": 1}
    opsets = [helper.make_opsetid(domain, version) for domain, version in versions.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


W1, B1 = GENERATOR.standard_normal((3, 4)), GENERATOR.standard_normal(4)
W2, B2 = GENERATOR.standard_normal((4, 2)), GENERATOR.standard_normal(2)


def mlp(folder, opset=18, dtype=np.float32, kind=F32, name="mlp"):
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "w2"], ["m"]),
        helper.make_node("Add", ["m", "b2"], ["y"]),
    ]
    constants = {"w1": W1, "b1": B1, "w2": W2, "b2": B2}
    constants = {k: v.astype(dtype) for k, v in constants.items()}
    shapes = {"x": (kind, ["batch", 3])}, {"y": (kind, ["batch", 2])}
    return save(folder, nodes, *shapes, constants, opset, name)


@pytest.mark.parametrize("opset", [13, 18, 22])
def test_mlp(tmp_path, opset):
    model = load_component(mlp(tmp_path, opset))
    assert str(model.capabilities["vector_jacobian_product"]) == "derived (jax)"
    x = GENERATOR.standard_normal((5, 3)).astype(np.float32)
    np.testing.assert_allclose(
        model.apply({"x": x})["y"], np.tanh(x @ W1 + B1) @ W2 + B2, rtol=1e-4
    )
    assert model.differentiable_inputs["x"].dimension_names == ("batch", None)


def test_gradient_vmap_and_hessian_are_closed_forms(tmp_path):
    model = from_onnx(mlp(tmp_path, dtype=np.float64, kind=F64))

    def loss(x):
        return apply_component(model, {"x": x[None]})["y"].sum()

    def by_hand(x):
        return jnp.sum(jnp.tanh(x @ W1 + B1) @ W2 + B2)

    with jax.enable_x64(True):
        xs = jnp.asarray(GENERATOR.standard_normal((4, 3)))
        for transform in (jax.grad, jax.hessian):
            found = jax.jit(jax.vmap(transform(loss)))(xs)
            np.testing.assert_allclose(found, jax.vmap(transform(by_hand))(xs), rtol=1e-12)


def test_convolutions_and_batch_normalization(tmp_path):
    kernel = GENERATOR.standard_normal((4, 2, 3, 3)).astype(np.float32)
    four = [np.abs(GENERATOR.standard_normal(4)).astype(np.float32) for _ in range(4)]
    nodes = [
        helper.make_node("Conv", ["x", "w", "s"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[1, 1], auto_pad="SAME_UPPER"),
        helper.make_node("AveragePool", ["p"], ["a"], kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"]),
    ]  # fmt: skip
    constants = {"w": kernel, **dict(zip("sbmv", four, strict=True))}
    path = save(tmp_path, nodes, {"x": (F32, ["n", 2, 8, 8])}, {"y": (F32, ["n", 4])}, constants)
    model = from_onnx(path)  # compared with onnxruntime when it is loaded
    x = GENERATOR.standard_normal((1, 2, 8, 8)).astype(np.float32)
    jacobian = model.jacobian({"x": x}, ["x"], ["y"])["y"]["x"]
    # Probabilities sum to one for every input.
    np.testing.assert_allclose(jacobian.sum(axis=1), 0, atol=1e-6)
    assert np.any(jacobian)


VECTOR = {"x": (F32, [2, 3])}
SINGLE = {
    "Abs": {}, "Atan": {}, "Ceil": {}, "Cos": {}, "Elu": {"alpha": 0.7}, "Erf": {}, "Exp": {}, "Floor": {},
    "Gelu": {"approximate": "tanh"}, "HardSigmoid": {}, "HardSwish": {}, "LeakyRelu": {"alpha": 0.3},
    "LogSoftmax": {"axis": 0}, "Mish": {}, "Neg": {}, "Reciprocal": {}, "Relu": {}, "Round": {}, "Selu": {},
    "Sigmoid": {}, "Sign": {}, "Sin": {}, "Softmax": {}, "Softplus": {}, "Softsign": {}, "Tanh": {},
    "Transpose": {"perm": [1, 0]}, "ReduceL1": {}, "ReduceL2": {"keepdims": 0}, "ReduceLogSumExp": {},
    "ReduceMax": {}, "ReduceMean": {}, "ReduceMin": {}, "ReduceProd": {}, "ReduceSum": {},
    "ReduceSumSquare": {}, "Flatten": {"axis": 0}, "Identity": {}, "Cast": {"to": F64},
}  # fmt: skip
WITH_MORE = [
    ("Clip", {}, [np.float32(-0.5), np.float32(0.5)]),
    ("CumSum", {"exclusive": 1, "reverse": 1}, [np.array(1)]),
    ("Slice", {}, [np.array([2]), np.array([-10]), np.array([1]), np.array([-1])]),
    ("Gather", {"axis": 1}, [np.array([0, -1])]),
    ("Pad", {}, [np.array([0, 1, 0, 2]), np.float32(7)]),
    ("Expand", {}, [np.array([4, 1, 3])]),
    ("Tile", {}, [np.array([2, 1])]),
    ("Unsqueeze", {}, [np.array([0])]),
    ("Reshape", {}, [np.array([0, -1, 1])]),
    ("Div", {}, [np.float32([[1, 2, 4]])]),
    ("Pow", {}, [np.float32(2)]),
    ("PRelu", {}, [np.float32([0.1, 0.2, 0.3])]),
    ("LayerNormalization", {}, [np.float32([1, 2, 3]), np.float32([0, 1, 0])]),
    ("Gemm", {"transB": 1, "alpha": 0.5}, [np.ones((4, 3), np.float32)]),
    ("Einsum", {"equation": "ij,kj->ik"}, [np.ones((4, 3), np.float32)]),
    ("Concat", {"axis": 0}, [np.ones((1, 3), np.float32)]),
    ("ReduceMean", {}, [np.array([1])]),
    ("Max", {}, [np.zeros((1, 3), np.float32)]),
]
LEARNED = [
    ("Scaler", {"offset": [1.0, 2.0, 3.0], "scale": [0.5, 1.0, 2.0]}, []),
    ("Normalizer", {"norm": "L1"}, []),
    ("Normalizer", {"norm": "L2"}, []),
    ("LinearRegressor", {"coefficients": [1.0, 2.0, 3.0]}, []),
    ("LinearRegressor", {
        "targets": 2, "coefficients": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "intercepts": [1.0, 2.0],
    }, []),
    ("ArrayFeatureExtractor", {}, [np.array([[2, 0]])]),
    *(
        ("SVMRegressor", {
            "kernel_type": kernel, "kernel_params": [0.5, 1.0, 2.0], "n_supports": 2, "rho": [0.25],
            "coefficients": [1.0, -2.0], "support_vectors": [0.1, 0.2, 0.3, -1.0, 0.0, 1.0],
        }, [])
        for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
]  # fmt: skip


def test_every_operator_agrees_with_onnxruntime(tmp_path):
    """`from_onnx` compares, and warns if they differ; warnings are errors here."""
    cases = [("", op, attributes, []) for op, attributes in SINGLE.items()]
    cases += [("", *each) for each in WITH_MORE] + [("ai.onnx.ml", *each) for each in LEARNED]
    cases += [("com.microsoft", "CDist", {"metric": metric}, [np.ones((4, 3), np.float32)])
              for metric in ("euclidean", "sqeuclidean")]  # fmt: skip
    nodes, outputs, constants = [], {}, {}
    for number, (domain, op, attributes, more) in enumerate(cases):
        given = {f"c{number}_{k}": np.asarray(value) for k, value in enumerate(more)}
        y = f"{op}_{number}"  # a warning names the output that differs
        nodes.append(helper.make_node(op, ["x", *given], [y], domain=domain, **attributes))
        outputs[y] = (F64 if op == "Cast" else F32, None)
        constants |= given
    from_onnx(save(tmp_path, nodes, VECTOR, outputs, constants, opset=20))


def test_exclusive_sums_do_not_know_their_own_element(tmp_path):
    sums = helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=1)
    shapes = {"x": (F32, [3])}, {"y": (F32, [3])}
    model = from_onnx(save(tmp_path, [sums], *shapes, {"axis": np.int64(0)}))
    x = np.float32([1.0, 2.0, np.inf])
    assert model.apply({"x": x})["y"].tolist() == [0.0, 1.0, 3.0]
    found = jax.jit(lambda x: apply_component(model, {"x": x}, inline=True)["y"])(x)
    assert found.tolist() == [0.0, 1.0, 3.0]


def test_further_results_that_are_used_have_no_derivatives(tmp_path):
    pool = helper.make_node("MaxPool", ["x"], ["m", "places"], kernel_shape=[2])
    cast = helper.make_node("Cast", ["places"], ["y"], to=F32)
    shapes = {"x": (F32, [1, 1, 3])}, {"y": (F32, [1, 1, 2])}
    path = save(tmp_path, [pool, cast], *shapes)
    with pytest.warns(RuntimeWarning, match="the further result 'places' of an operator"):
        model = from_onnx(path)
    assert model.apply({"x": np.float32([[[1, 3, 2]]])})["y"].tolist() == [[[1.0, 1.0]]]


def test_large_integers_are_divided_exactly(tmp_path):
    nodes = [helper.make_node("Div", ["k", "d"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    inputs, outputs = {"k": (I32, [4]), "x": (F32, [1])}, {"y": (I32, [4]), "z": (F32, [1])}
    path = save(tmp_path, nodes, inputs, outputs, {"d": np.int32([1, 1, 2, -2])})
    model, x = from_onnx(path), jnp.ones(1)
    k = np.int32([2**24 + 1, -(2**31) + 1, -7, 7])
    found = jax.jit(lambda k: apply_component(model, {"k": k, "x": x})["y"])(k)
    assert found.tolist() == [2**24 + 1, -(2**31) + 1, -3, -3]


def test_a_classifier_has_the_derivative_of_its_probabilities(tmp_path):
    """A scaler and a logistic regression, as scikit-learn's exporter writes them."""
    weights, bias = np.float32(W1.T), np.float32(B1)  # four classes of three features
    attributes = {
        "coefficients": weights.ravel().tolist(), "intercepts": bias.tolist(),
        "classlabels_ints": [10, 20, 30, 40], "multi_class": 1, "post_transform": "SOFTMAX",
    }  # fmt: skip
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[0.0], scale=[2.0]),
        helper.make_node("LinearClassifier", ["s"], ["label", "p"], domain="ai.onnx.ml", **attributes),
        helper.make_node("ArgMax", ["p"], ["place"], axis=1, keepdims=0),
    ]  # fmt: skip
    outputs = {"label": (I64, ["n"]), "p": (F32, ["n", 4]), "place": (I64, ["n"])}
    model = from_onnx(save(tmp_path, nodes, {"x": (F32, ["n", 3])}, outputs))
    x = GENERATOR.standard_normal((2, 3)).astype(np.float32)
    found = model.apply({"x": x})
    assert found["label"].tolist() == (10 * (found["place"] + 1)).tolist()
    # ∂pᵢ/∂x = pᵢ (wᵢ − Σⱼ pⱼ wⱼ) · scale
    p = found["p"]
    expected = 2 * p[:, :, None] * (weights - (p @ weights)[:, None])
    jacobian = model.jacobian({"x": x}, ["x"], ["p"])["p"]["x"]
    for k in range(2):
        np.testing.assert_allclose(jacobian[k, :, k], expected[k], rtol=1e-4, atol=1e-6)


def test_distances_have_a_derivative_where_points_meet(tmp_path):
    x = np.float32([[3, 0, 0], [0, 4, 0]])
    node = helper.make_node("CDist", ["x", "c"], ["y"], domain="com.microsoft", metric="euclidean")
    model = from_onnx(save(tmp_path, [node], VECTOR, {"y": (F32, [2, 2])}, {"c": x}))
    slope = model.jacobian({"x": x}, ["x"], ["y"])["y"]["x"]
    np.testing.assert_allclose(slope[0, 1, 0], [0.6, -0.8, 0], atol=1e-6)
    assert not slope[0, 0].any()


def test_a_symbolic_batch_is_traced_once_for_each_size(tmp_path):
    weights = np.float32([[1, 2], [3, 4], [5, 6]])
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    model = from_onnx(
        save(tmp_path, nodes, {"x": (F32, ["n", 3])}, {"y": (F32, ["n", 2])}, {"w": weights})
    )
    traced = []

    @jax.jit
    def apply(x):
        traced.append(x.shape)
        return apply_component(model, {"x": x})["y"]

    for size in (2, 5, 2, 5, 1):
        x = np.linspace(-1, 1, 3 * size, dtype=np.float32).reshape(size, 3)
        np.testing.assert_allclose(apply(x), np.tanh(x @ weights), rtol=1e-5)
        rows = jax.vmap(lambda row: apply_component(model, {"x": row[None]})["y"][0])(x)
        np.testing.assert_allclose(rows, np.tanh(x @ weights), rtol=1e-5)
    assert traced == [(2, 3), (5, 3), (1, 3)]


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_a_row_of_zeros_is_not_normalized(tmp_path, norm):
    x = np.float32([[0, 0, 0], [1, -2, 2]])
    node = helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm=norm)
    path = save(tmp_path, [node], VECTOR, {"y": (F32, ["n", 3])})
    model = from_onnx(path)
    apply = jax.jit(lambda x: apply_component(model, {"x": x})["y"])
    expected = onnxruntime.InferenceSession(path).run(None, {"x": x})[0]
    np.testing.assert_allclose(apply(x), expected, rtol=1e-6)
    slope = jax.jacobian(apply)(x)
    np.testing.assert_array_equal(slope[0, :, 0], np.eye(3))  # it is divided by 1
    np.testing.assert_allclose(
        jax.jvp(apply, (x,), (x,))[1][1],
        0,
        atol=1e-6,  # a longer row has the same direction
    )


def _scan(scale, **attributes):
    """s ← s w + x over the rows of x, with the parts s and s² of every row; w is outside of the body."""
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["s", "w"], ["sw"]),
            helper.make_node(scale, ["sw", "x"], ["next"]),
            helper.make_node("Mul", ["next", "next"], ["square"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, F32, [3]) for name in ("s", "x")],
        [helper.make_tensor_value_info(name, F32, [3]) for name in ("next", "square")],
    )
    node = helper.make_node(
        "Scan", ["s0", "x"], ["last", "squares"], num_scan_inputs=1, body=body, **attributes
    )
    outputs = {"last": (F32, [3]), "squares": (F32, ["n", 3])}
    constants = {"s0": np.float32([1, 0, 2]), "w": np.float32([2, 3, 0.5])}
    return [node], {"x": (F32, ["n", 3])}, outputs, constants


def test_scans_have_derivatives(tmp_path):
    model = from_onnx(save(tmp_path, *_scan("Add")))
    x = GENERATOR.standard_normal((4, 3)).astype(np.float32)

    def by_hand(x):
        states = [jnp.array([1.0, 0.0, 2.0])]
        for row in x:
            states.append(states[-1] * jnp.array([2.0, 3.0, 0.5]) + row)
        return {"last": states[-1], "squares": jnp.stack(states[1:]) ** 2}

    found, expected = model.apply({"x": x}), by_hand(x)
    blocks = model.jacobian({"x": x}, ["x"], ["last", "squares"])
    slopes = jax.jacobian(by_hand)(jnp.asarray(x))
    for name in ("last", "squares"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
        np.testing.assert_allclose(blocks[name]["x"], slopes[name], rtol=1e-4, atol=1e-5)


def _scan_of_integers():
    places = [helper.make_tensor_value_info(name, I64, [3]) for name in ("s", "row", "next")]
    body = helper.make_graph(
        [helper.make_node("BitwiseAnd", ["s", "row"], ["next"])], "body", places[:2], places[2:]
    )
    node = helper.make_node("Scan", ["s0", "k"], ["last"], num_scan_inputs=1, body=body)
    double = helper.make_node("Add", ["x", "x"], ["y"])
    inputs = {"x": (F32, [2]), "k": (I64, ["n", 3])}
    outputs = {"last": (I64, [3]), "y": (F32, [2])}
    return [node, double], inputs, outputs, {"s0": np.int64([1, 2, 3])}


def test_scans_that_are_not_supported(tmp_path):
    with pytest.warns(RuntimeWarning, match="operators that have none here: BitwiseAnd-18"):
        from_onnx(save(tmp_path, *_scan_of_integers()))
    with pytest.warns(RuntimeWarning, match="scan_input_directions"):
        from_onnx(save(tmp_path, *_scan("Add", scan_input_directions=[1])))


def test_a_gaussian_process_as_it_is_exported_by_default(tmp_path):
    pytest.importorskip("skl2onnx")
    from skl2onnx import to_onnx
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    x = np.linspace(-2, 2, 24).reshape(12, 2)
    process = GaussianProcessRegressor(ConstantKernel(2.0) * RBF(0.7), optimizer=None, alpha=1e-4)
    process.fit(x, np.sin(x[:, 0]) + x[:, 1] ** 2)
    path = tmp_path / "process.onnx"
    path.write_bytes(to_onnx(process, x[:1]).SerializeToString())
    model = from_onnx(path)
    at, step = np.array([[0.3, -0.4]]), 1e-5
    slope = model.jacobian({"X": at}, ["X"], ["GPmean"])["GPmean"]["X"].ravel()
    ends = [process.predict(at + sign * step * np.eye(2)) for sign in (1, -1)]
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / (2 * step), rtol=1e-5)


def test_shapes_that_the_graph_computes(tmp_path):
    """Shape → Gather → Concat → Reshape, as exporters write it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Split", ["r"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Mul", ["a", "b"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "rest": np.array([6])}
    path = save(tmp_path, nodes, {"x": (F32, ["n", 2, 3])}, {"y": (F32, ["n", 3])}, constants)
    model = from_onnx(path)
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    grad = jax.grad(lambda x: apply_component(model, {"x": x})["y"].sum())(jnp.asarray(x))
    np.testing.assert_allclose(grad, x[:, ::-1])


def test_two_inputs_and_outputs_with_integers(tmp_path):
    nodes = [
        helper.make_node("Gather", ["table", "index"], ["rows"]),
        helper.make_node("Mul", ["rows", "scale"], ["y"]),
        helper.make_node("Identity", ["index"], ["again"]),
    ]
    path = save(
        tmp_path, nodes, {"index": (I64, ["n"]), "scale": (F32, [])},
        {"y": (F32, ["n", 2]), "again": (I64, ["n"])},
        {"table": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )  # fmt: skip
    model = from_onnx(path)
    assert list(model.differentiable_inputs) == ["scale"]
    assert list(model.differentiable_outputs) == ["y"]
    found = model.apply({"index": [2, 0], "scale": 2.0})
    assert found["y"].tolist() == [[8, 10], [0, 2]]
    assert found["again"].tolist() == [2, 0]
    slope = model.jacobian({"index": [2, 0], "scale": 2.0}, ["scale"], ["y"])["y"]["scale"]
    assert slope.tolist() == [[4, 5], [0, 1]]


def test_half_precision(tmp_path):
    model = from_onnx(mlp(tmp_path, dtype=np.float16, kind=TensorProto.FLOAT16))
    assert model.apply({"x": np.ones((1, 3), np.float16)})["y"].dtype == np.float16


def test_operators_that_are_not_supported(tmp_path):
    nodes = [
        helper.make_node("NonZero", ["x"], ["z"]),
        helper.make_node("Cast", ["z"], ["f"], to=F32),
        helper.make_node("Det", ["s"], ["d"]),
        helper.make_node("Add", ["f", "d"], ["y"]),
    ]
    path = save(tmp_path, nodes, VECTOR, {"y": (F32, None)}, {"s": np.eye(2, dtype=np.float32)})
    with pytest.warns(RuntimeWarning, match="Det-18, NonZero-18"):
        model = from_onnx(path)
    assert model.capabilities["jacobian"].status == "absent"
    with pytest.raises(CapabilityError):
        model.jacobian({"x": np.ones((2, 3))}, ["x"], ["y"])
    assert from_onnx(path, derivatives=None).apply({"x": np.ones((2, 3))})["y"].shape == (2, 6)


def test_control_flow_has_no_derivative_but_differences(tmp_path):
    def branch(name, factor):
        constant = numpy_helper.from_array(np.float32(factor), f"{name}_c")
        node = helper.make_node("Mul", ["x", f"{name}_c"], [name])
        out = [helper.make_tensor_value_info(name, F32, [2, 3])]
        return helper.make_graph([node], name, [], out, [constant])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("a", 2), else_branch=branch("b", 3)),
    ]  # fmt: skip
    path = save(tmp_path, nodes, VECTOR, {"y": (F32, [2, 3])}, {"zero": np.float32(0)})
    with pytest.warns(RuntimeWarning, match="If-18"):
        from_onnx(path)
    model = from_onnx(path, derivatives="finite")
    jacobian = model.jacobian({"x": np.ones((2, 3))}, ["x"], ["y"])["y"]["x"]
    np.testing.assert_allclose(jacobian.reshape(6, 6), 2 * np.eye(6), atol=1e-2)


def test_a_graph_that_differs_is_noticed(tmp_path, monkeypatch):
    from chainrule.runtime._onnx import _graph

    monkeypatch.setitem(_graph.OPERATORS, "Tanh", lambda node, x: jnp.sin(x))
    with pytest.warns(RuntimeWarning, match="output y differs"):
        model = from_onnx(mlp(tmp_path))
    assert model.capabilities["jacobian"].status == "absent"


def test_inputs_without_room_in_memory_have_no_derivatives(tmp_path):
    size = [10**6, 10**7]
    path = save(
        tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": (F32, size)}, {"y": (F32, size)}
    )
    with pytest.warns(RuntimeWarning, match="no room in memory"):
        model = from_onnx(path)
    assert model.capabilities["jacobian"].status == "absent"


def test_weights_outside_of_the_folder_are_refused(tmp_path):
    """A model cannot bring files of this machine to its callers."""
    secret = tmp_path / "secret"
    secret.write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (folder := tmp_path / "model").mkdir()
    for place in ("../secret", str(secret)):
        weights = onnx.TensorProto(name="w", data_type=F32, dims=[4], data_location=1)
        for key, value in (("location", place), ("length", "16")):
            weights.external_data.add(key=key, value=value)
        node = helper.make_node("Add", ["x", "w"], ["y"])
        sides = ([helper.make_tensor_value_info(name, F32, [4])] for name in "xy")
        graph = helper.make_graph([node], "g", *sides, [weights])
        opset = helper.make_opsetid("", 18)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(DefinitionError) as caught:
            from_onnx(folder / "m.onnx")
        assert caught.value.code == "bad_onnx"


def test_bad_inputs_and_files(tmp_path):
    model = from_onnx(mlp(tmp_path))
    for inputs, where in (({"x": np.ones((2, 4))}, "x"), ({"z": np.ones((2, 3))}, "z"), ({}, "x")):
        with pytest.raises(InputError) as caught:
            model.apply(inputs)
        assert where in str(caught.value)
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"nothing")
    for path in (junk, tmp_path / "absent.onnx"):
        with pytest.raises(DefinitionError) as caught:
            from_onnx(path)
        assert caught.value.code == "bad_onnx"


def test_external_data(tmp_path):
    model = onnx.load(mlp(tmp_path))
    path = tmp_path / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    x = np.ones((1, 3), np.float32)
    expected = np.tanh(x @ W1 + B1) @ W2 + B2
    np.testing.assert_allclose(from_onnx(path).apply({"x": x})["y"], expected, rtol=1e-4)
