"""ONNX models as components: results from onnxruntime, derivatives from the same graph in JAX.

In reading order:

    _open           `from_onnx`: schemas from the graph, and which derivatives it has
    _evaluate       a graph as a function in JAX, node by node
    _operators      the operators, one entry each
"""
