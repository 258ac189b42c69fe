"""`apply_component` for tensors, and the one autograd function behind it.

The operands and the calculus of `HostFunction` are those of the JAX primitive: see `chainrule.bridge`.
Reverse mode of a request is again requests, made by the same function, so second derivatives need no further
code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from chainrule._codec import DTYPE_NAMES, dtype_from_name
from chainrule._errors import CapabilityError, InputError
from chainrule.bridge.internal import (
    Call,
    Framework,
    Options,
    VmapMethod,
    host_call,
    is_inexact,
    prepare_call,
)


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


# --- the autograd function ----------------------------------------------------------------------


class HostFunction(torch.autograd.Function):
    """`HostFunction.apply(call, *operands)`: the results of a call."""

    @staticmethod
    def forward(call: Call, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the call on the host."""
        _check_not_recorded(call)
        _check_not_batched_the_old_way(call, operands)
        device = operands[0].device if operands else torch.device("cpu")
        arrays = [o.detach().cpu().resolve_conj().resolve_neg().numpy() for o in operands]
        results = host_call(call).evaluate(arrays)
        return tuple(torch.from_numpy(result).to(device) for result in results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Keep the operands; say which results are integers."""
        ctx.call, *operands = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(o for o in output if not o.dtype.is_floating_point and not o.dtype.is_complex)
        )

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """For every operand that needs it the transposed call."""
        # The gradient that torch stores for a complex z is the conjugate of JAX's cotangent, in which the
        # endpoints answer (see `chainrule.bridge`): Re(conj(g) dz) in place of Re(g dz).
        given = [None if c is None else c.conj() for c in cotangents]
        needed = ctx.needs_input_grad[1:]
        if not any(needed) or all(each is None for each in given):
            return (None, *(None for _ in needed))
        found = ctx.call.pull_back(ctx.saved_tensors, given, needed, _run)
        return (None, *(None if each is None else each.conj() for each in found))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The sum of the calls that make up the derivative along tangents."""
        call = ctx.call
        terms = [
            _run(term, operands)
            for term, operands in call.push_forward(
                ctx.saved_tensors, tangents, lambda tangent: tangent is not None
            )
        ]
        total = [torch.stack(parts).sum(0) for parts in zip(*terms, strict=True)]
        device = ctx.saved_tensors[0].device
        pairs = zip(call.place(total), call.result_types, strict=True)
        return tuple(_zeros(type_, device) if each is None else each for each, type_ in pairs)

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *operands: torch.Tensor) -> tuple[Any, Any]:
        """One more batch axis for the host to fan out over."""
        if call.site.options.vmap_method is None:
            raise CapabilityError(
                f"{call.site.target.name} is called with `vmap_method=None`, which forbids `vmap`.",
                code="vmap_forbidden",
            )
        dims = in_dims[1:]
        fronted = [
            operand if dim is None else operand.movedim(dim, 0)
            for operand, dim in zip(operands, dims, strict=True)
        ]
        batched = call.batched(info.batch_size, [dim is not None for dim in dims])
        results = HostFunction.apply(batched, *fronted)
        return results, (0,) * len(results)


def _run(call: Call, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results of a call that is itself part of the graph, so that it can be differentiated again."""
    return HostFunction.apply(call, *operands)


def _zeros(type_: Any, device: torch.device) -> torch.Tensor | None:
    """The tangent of a constant; integers have none."""
    if not is_inexact(type_.dtype):
        return None
    return torch.from_numpy(np.zeros(type_.shape, type_.dtype)).to(device)


def _check_not_recorded(call: Call) -> None:
    """Refuse to become a constant of a program that torch records to run it again with other numbers."""
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    is_recording = recorder is not None and recorder.get_proxy_mode() is not None
    if is_recording or torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise CapabilityError(
            f"torch is recording its operations (`torch.func.linearize`, `make_fx`, `torch.jit.trace`), and "
            f"{call!r} is not one of them: its result would be a constant of the recorded program. Use "
            "`torch.func.jvp` or `torch.func.vjp`.",
            code="not_recordable",
        )


def _check_not_batched_the_old_way(call: Call, operands: Sequence[torch.Tensor]) -> None:
    """Refuse tensors of the `vmap` before `torch.func`, which knows no rules of autograd functions."""
    # torch has no public name for this question.
    if any(map(torch._C._functorch.is_legacy_batchedtensor, operands)):
        raise CapabilityError(
            f"torch batches {call!r} in a way (`is_grads_batched`, `vectorize`, `check_batched_grad`) that "
            "only its own operations know. Use `torch.func.jacrev`, `torch.func.jacfwd` or "
            "`torch.func.vmap`.",
            code="not_batchable",
        )
