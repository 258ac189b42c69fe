"""One autograd function for every call, differentiable as often as the component allows.

Its operands and its calculus are those of the JAX primitive: see `chainrule.bridge._requests`. Reverse mode
of a request is again requests, made by the same function, so second derivatives need no further code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from chainrule._errors import CapabilityError
from chainrule.bridge.internal import (
    ArrayType,
    Call,
    Vectors,
    check_inputs,
    differentiable,
    host_call,
    is_inexact,
    make_call,
    not_differentiable,
    open_call,
    pushed_forward,
)


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
        call, operands = ctx.call, ctx.saved_tensors
        everywhere = (True,) * len(call.batch.sizes)
        # torch's gradients are conjugate to JAX's, in which the endpoints answer.
        conjugated = tuple(None if c is None else c.conj() for c in cotangents)
        given = Vectors(call.request.result, conjugated, (everywhere,) * len(conjugated))
        given = given.keep(lambda cotangent: cotangent is not None)
        needed = ctx.needs_input_grad[1:]
        if not given.values or not any(needed):
            return (None, *(None for _ in operands))
        for port in given.space.ports(call.site):
            if not port.differentiable:
                raise not_differentiable(call.site.target.name, port)
        return (None, *_pull_back(call, operands, given, needed))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """The sum of the calls that make up the derivative along tangents."""
        call = ctx.call
        terms = [
            HostFunction.apply(term, *operands)
            for term, operands in pushed_forward(
                call, ctx.saved_tensors, tangents, lambda tangent: tangent is not None
            )
        ]
        total = [torch.stack(parts).sum(0) for parts in zip(*terms, strict=True)]
        moving = differentiable(call.site, call.request.result).positions
        by_position = dict(zip(moving, total, strict=False))
        pairs = zip(call.request.result.positions, call.result_types, strict=True)
        device = ctx.saved_tensors[0].device
        return tuple(
            by_position[position] if position in by_position else _zeros(type_, device)
            for position, type_ in pairs
        )

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
        batch = call.batch.with_outer(info.batch_size, [dim is not None for dim in dims])
        results = HostFunction.apply(replace(call, batch=batch), *fronted)
        return results, (0,) * len(results)


def _zeros(type_: ArrayType, device: torch.device) -> torch.Tensor | None:
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
    if any(map(torch._C._functorch.is_legacy_batchedtensor, operands)):
        raise CapabilityError(
            f"torch batches {call!r} in a way (`is_grads_batched`, `vectorize`, `check_batched_grad`) that "
            "only its own operations know. Use `torch.func.jacrev`, `torch.func.jacfwd` or "
            "`torch.func.vmap`.",
            code="not_batchable",
        )


def _pull_back(
    call: Call, operands: Sequence[torch.Tensor], given: Vectors, needed: Sequence[bool]
) -> list[torch.Tensor | None]:
    primals, slots = open_call(call, operands)
    wanted_primals, wanted_slots = open_call(call, [need or None for need in needed])
    gradients: list[torch.Tensor | None] = []
    # With respect to the primals a slot for the cotangents is added; with respect to a slot they replace it.
    for number, wanted in enumerate([wanted_primals, *wanted_slots]):
        others = slots if number == 0 else [*slots[: number - 1], *slots[number:]]
        part = wanted.keep(lambda need: need is not None)
        if number == 0:
            check_inputs(call.site, part.space)
        answers = iter(())
        if part.values:
            transposed, arguments = make_call(
                call.site, call.batch.sizes, primals, [*others, given], part.space
            )
            answers = iter(HostFunction.apply(transposed, *arguments))
        gradients += [
            None if need is None else _sum_unmapped(next(answers), axes).conj()
            for need, axes in zip(wanted.values, wanted.mapped, strict=True)
        ]
    return gradients


def _sum_unmapped(answer: torch.Tensor, mapped: tuple[bool, ...]) -> torch.Tensor:
    """An operand without a batch axis was used by every example of that axis."""
    axes = [axis for axis, has in enumerate(mapped) if not has]
    return answer.sum(axes) if axes else answer
