"""`apply_component` for tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from chainrule._codec import DTYPE_NAMES, dtype_from_name
from chainrule._errors import InputError
from chainrule.bridge.internal import Framework, Options, VmapMethod, prepare_call
from chainrule.torch._function import HostFunction


def apply_component(
    component: Any,
    inputs: Any,
    *,
    vmap_method: VmapMethod | None = "auto",
    max_concurrency: int | None = None,
    infer_by_evaluation: bool = False,
) -> Any:
    """Call a component with tensors; it is differentiable like any function of torch.

    Args:
        component: a component in this process, a handle of a served one, or a `tesseract_core.Tesseract`.
        inputs: its inputs as nested data. Tensors and NumPy arrays are operands, everything else is static.
        vmap_method: how `torch.func.vmap` is done; see `chainrule.apply_component`. There is no native
            batching here: examples are separate calls.
        max_concurrency: how many calls of one `vmap` run at the same time.
        infer_by_evaluation: learn the outputs' shapes from one real evaluation when the component has no
            `abstract_eval`.

    Returns:
        The outputs as a tree of tensors, on the device of the first operand.

    Raises:
        InputError: the inputs do not fit, or a derivative was asked with respect to an input that is not
            differentiable.
        CapabilityError: the component has no derivative that was asked for.
        ComponentError: the component failed.

    Example:
        >>> import torch
        >>> from chainrule import component
        >>> from chainrule.runtime import Array, Differentiable, Float64
        >>> from chainrule.torch import apply_component
        >>> Vector = Differentiable[Array[("n",), Float64]]
        >>> @component(derivatives="finite")
        ... def square(x: Vector) -> Vector:
        ...     return x * x
        >>> x = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        >>> apply_component(square, {"x": x})["result"].sum().backward()
        >>> [round(g, 4) for g in x.grad.tolist()]
        [2.0, 4.0]
    """
    options = Options(
        vmap_method=vmap_method,
        max_concurrency=max_concurrency,
        infer_by_evaluation=infer_by_evaluation,
    )
    call, tensors, outputs = prepare_call(component, inputs, options, _TORCH)
    return outputs.build(list(HostFunction.apply(call, *tensors)))


def _as_tensor(leaf: Any) -> torch.Tensor:
    tensor = torch.as_tensor(leaf)
    # NumPy has no bfloat16; the conversion is part of the graph, so gradients come back narrow.
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def _numpy_dtype(tensor: torch.Tensor, path: str) -> np.dtype[Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if name in DTYPE_NAMES:
        return dtype_from_name(name)
    raise InputError(
        f"`{path}` is a tensor of {tensor.dtype}, which NumPy does not have. Convert it, for example by "
        "`.float()`.",
        code="not_an_array",
        path=path,
    )


def _held_by_torch(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.kind in "biufc" else np.dtype(np.float32)


_TORCH = Framework(_as_tensor, _numpy_dtype, _held_by_torch)
