"""ONNX models as components: results from onnxruntime, derivatives from the same graph in JAX.

In reading order:

    _open       `from_onnx`: schemas from the graph, and which derivatives it has
    _graph      a graph as a function in JAX, node by node, and the operators, one entry each
    _learners   the operators that exporters of scikit-learn write
"""
