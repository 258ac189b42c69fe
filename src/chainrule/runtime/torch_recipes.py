"""One-line endpoint bodies around a torch function, the twins of `chainrule.runtime.jax_recipes`.

`apply_fn` takes and returns nested dictionaries; arrays arrive as tensors. Derivatives come from
`torch.func`, so `apply_fn` must be free of in-place changes to its inputs. Results are NumPy arrays; tensors
on a GPU stay there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from chainrule._describe import describe_value
from chainrule._device import is_on_device, is_tensor, tensor_of, to_host
from chainrule._errors import ComponentError
from chainrule._trees import (
    dtype_name,
    flatten_with_paths,
    get_at_path,
    is_arraylike,
    map_leaves,
    set_at_path,
)
from chainrule.runtime._derivatives._derive import jacobian_from_jvp, jacobian_from_vjp
from chainrule.runtime._derivatives._layout import (
    canonical,
    check_keys,
    check_real,
    check_shape,
    is_abstract,
    not_differentiable,
    shape_and_dtype,
)
from chainrule.runtime._schema import number_kind
from chainrule.runtime._schema._plain import dumped

__all__ = [
    "torch_abstract_eval",
    "torch_apply",
    "torch_hessian_vector_product",
    "torch_jacobian",
    "torch_jvp",
    "torch_value_and_vjp",
    "torch_vjp",
]

Apply = Callable[[Any], Any]
Tensors = dict[str, torch.Tensor]


def torch_apply(apply_fn: Apply, inputs: Any) -> Any:
    """Call a torch function `dict -> dict` with an endpoint's inputs; tensors come back as arrays."""
    with torch.no_grad():
        return map_leaves(_to_array, apply_fn(_to_tensors(inputs)))


def torch_jacobian(
    apply_fn: Apply,
    inputs: Any,
    jac_inputs: Collection[str],
    jac_outputs: Collection[str],
    *,
    mode: Literal["auto", "forward", "reverse"] = "auto",
) -> dict[str, dict[str, np.ndarray]]:
    """The Jacobian of a torch function, by forward or reverse mode, whichever takes fewer passes.

    Complex outputs leave only forward mode, complex inputs only reverse mode. Where both are complex, the
    function is taken to be holomorphic.

    Args:
        apply_fn: the function.
        inputs: a model or nested mappings.
        jac_inputs: paths of the inputs.
        jac_outputs: paths of the outputs.
        mode: how to accumulate real numbers.

    Returns:
        `{output path: {input path: array of output shape + input shape}}`.
    """
    narrowed = _narrow(apply_fn, inputs, jac_inputs, jac_outputs)
    with torch.no_grad():
        outputs, (exact, _) = narrowed.function(narrowed.primals)
    if _has_complex(narrowed.primals | outputs):
        return _from_products(apply_fn, outputs, inputs, jac_inputs, jac_outputs)
    if mode == "auto":
        mode = "forward" if _size(narrowed.primals) <= _size(outputs) else "reverse"
    transform = torch.func.jacfwd if mode == "forward" else torch.func.jacrev
    blocks: Any = {}
    if _size(narrowed.primals) and _size(outputs):
        blocks, _ = transform(narrowed.function, has_aux=True)(narrowed.primals)
        if mode == "reverse":
            narrowed.refuse_lost()
    everything = narrowed.primals | narrowed.exact
    return {
        out: {
            path: _to_array(blocks[out][path])
            if blocks and out in outputs and path in narrowed.primals
            else np.zeros((*(outputs | exact)[out].shape, *everything[path].shape))
            for path in canonical(jac_inputs)
        }
        for out in canonical(jac_outputs)
    }


def _from_products(apply_fn: Apply, outputs: Tensors, *selection: Any) -> dict[str, dict[str, Any]]:
    """The Jacobian where something is complex, for which `torch.func` has products only."""
    how: Any = {"batched": True, "show_progress": False}
    if _has_complex(outputs):
        return jacobian_from_jvp(partial(torch_jvp, apply_fn), *selection, **how)
    evaluate = partial(torch_apply, apply_fn)
    return jacobian_from_vjp(partial(torch_vjp, apply_fn), evaluate, *selection, **how)


def _has_complex(tensors: Tensors) -> bool:
    return any(tensor.is_complex() for tensor in tensors.values())


def torch_jvp(
    apply_fn: Apply,
    inputs: Any,
    jvp_inputs: Collection[str],
    jvp_outputs: Collection[str],
    tangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, np.ndarray]:
    """The Jacobian-vector product of a torch function.

    Args:
        apply_fn: the function.
        inputs: a model or nested mappings.
        jvp_inputs: paths of the inputs.
        jvp_outputs: paths of the outputs.
        tangent_vector: `{input path: array}`.
        batched: whether tangents carry a leading batch axis; the result then does too.

    Returns:
        `{output path: array}`.
    """
    narrowed = _narrow(apply_fn, inputs, jvp_inputs, jvp_outputs)
    check_keys(tangent_vector, canonical(jvp_inputs), "tangent_vector")
    tangents = _fit(tangent_vector, narrowed.primals, batched)

    def push(tangent: Tensors) -> Tensors:
        pushed, exact = narrowed.push(tangent)
        return pushed | _zeros(exact)

    return _to_arrays(torch.func.vmap(push)(tangents) if batched else push(tangents))


def torch_vjp(
    apply_fn: Apply,
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    *,
    batched: bool = False,
) -> dict[str, np.ndarray]:
    """The vector-Jacobian product of a torch function; arguments as in `torch_jvp`.

    Returns:
        `{input path: array}`.
    """
    narrowed = _narrow(apply_fn, inputs, vjp_inputs, vjp_outputs)
    check_keys(cotangent_vector, canonical(vjp_outputs), "cotangent_vector")
    outputs, pull, _ = narrowed.linearize() if batched else narrowed.record()
    cotangents = _fit(cotangent_vector, outputs, batched)

    def pull_back(cotangent: Tensors) -> Tensors:
        return pull(cotangent)[0] | _zeros(narrowed.exact)

    return _to_arrays(torch.func.vmap(pull_back)(cotangents) if batched else pull_back(cotangents))


def torch_value_and_vjp(
    apply_fn: Apply,
    inputs: Any,
    vjp_inputs: Collection[str],
    vjp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
) -> tuple[Any, dict[str, np.ndarray]]:
    """All outputs and the vector-Jacobian product, from one forward and one backward pass."""
    narrowed = _narrow(apply_fn, inputs, vjp_inputs, vjp_outputs)
    check_keys(cotangent_vector, canonical(vjp_outputs), "cotangent_vector")
    outputs, pull, tensors = narrowed.record()
    (gradient,) = pull(_fit(cotangent_vector, outputs, False))
    return narrowed.outputs(tensors), _to_arrays(gradient | _zeros(narrowed.exact))


def torch_hessian_vector_product(
    apply_fn: Apply,
    inputs: Any,
    hvp_inputs: Collection[str],
    hvp_outputs: Collection[str],
    cotangent_vector: Mapping[str, Any],
    tangent_vector: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """The Hessian of ⟨cotangent, outputs⟩ times the tangent; arguments as in `jax_recipes`."""
    narrowed = _narrow(apply_fn, inputs, hvp_inputs, hvp_outputs)
    check_keys(cotangent_vector, canonical(hvp_outputs), "cotangent_vector")
    check_keys(tangent_vector, canonical(hvp_inputs), "tangent_vector")

    def gradient(primals: Tensors) -> Tensors:
        # d/dt Jᵀ(x + t v) u at t = 0 is the Hessian of ⟨u, f⟩ times v: forward mode over reverse mode, one
        # pass of each.
        outputs, pull, _ = narrowed.linearize(primals)
        return pull(_fit(cotangent_vector, outputs, False))[0]

    directions = _fit(tangent_vector, narrowed.primals, False)
    products: Any = torch.func.jvp(gradient, (narrowed.primals,), (directions,))
    product = products[1]
    return _to_arrays(product | _zeros(narrowed.exact))


def torch_abstract_eval(apply_fn: Apply, abstract_inputs: Any, *, device: str = "cpu") -> Any:
    """Evaluate a torch function on shapes, with tensors that hold no data.

    Args:
        apply_fn: the function.
        abstract_inputs: inputs whose arrays are `{"shape": ..., "dtype": ...}`.
        device: where the inputs would be.

    Returns:
        The outputs, arrays again as `{"shape": ..., "dtype": ...}`.
    """
    tree = dumped(abstract_inputs)
    # A model closes over its weights, which are real.
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        outputs = apply_fn(map_leaves(partial(_empty, device=device), tree, is_leaf=is_abstract))
    return map_leaves(_aval, outputs)


@dataclass(frozen=True)
class _Narrowed:
    """A function of the selected inputs that can vary.

    Attributes:
        function: `{input path: tensor}` → `({output path: tensor}, (exact outputs, all tensors))`.
        primals: the selected inputs that can vary.
        exact: the selected inputs that are integer or boolean; their derivative is zero.
        seen: of the last call, `outputs` and the paths of `constant` ones, which reverse mode does not trace
            to an input. `torch.func` lets only tensors out of a function, so what else there is (text,
            `None`) is left here.
    """

    function: Callable[[Tensors], tuple[Tensors, tuple[Tensors, Tensors]]]
    primals: Tensors
    exact: Tensors
    seen: dict[str, Any]

    def push(self, tangent: Tensors) -> tuple[Tensors, Tensors]:
        """The tangents of the outputs, and the exact outputs."""
        found: Any = torch.func.jvp(self.function, (self.primals,), (tangent,), has_aux=True)
        _, pushed, (exact, _) = found
        return pushed, exact

    def linearize(
        self, primals: Tensors | None = None
    ) -> tuple[Tensors, Callable[[Tensors], tuple[Tensors]], Tensors]:
        """The selected outputs that vary, the function back to the inputs, and all tensors."""
        at = self.primals if primals is None else primals
        found: Any = torch.func.vjp(self.function, at, has_aux=True)
        outputs, pull, (_, tensors) = found
        self.refuse_lost()
        return outputs, lambda cotangent: (_conjugated(pull(_conjugated(cotangent))[0]),), tensors

    def record(self) -> tuple[Tensors, Callable[[Tensors], tuple[Tensors]], Tensors]:
        """The same as `linearize`, for one cotangent, on torch's tape: less work than `torch.func`."""
        leaves = {path: tensor.detach().requires_grad_() for path, tensor in self.primals.items()}
        with torch.enable_grad():
            # Clones, because torch lets no code overwrite a leaf of the tape.
            outputs, (_, tensors) = self.function({p: leaf.clone() for p, leaf in leaves.items()})
        self.refuse_lost()

        def pull(cotangent: Tensors) -> tuple[Tensors]:
            moving = [path for path, output in outputs.items() if output.requires_grad]
            found: Any = [None] * len(leaves)
            if moving and leaves:
                # In this thread: for small arrays on a GPU, handing over to another one takes longer.
                with torch.autograd.set_multithreading_enabled(False):
                    found = torch.autograd.grad(
                        [outputs[path] for path in moving],
                        list(leaves.values()),
                        [cotangent[path].conj() for path in moving],
                        allow_unused=True,
                    )
            pairs = zip(leaves.items(), found, strict=True)
            return (
                {p: torch.zeros_like(leaf) if g is None else g.conj() for (p, leaf), g in pairs},
            )

        return {path: output.detach() for path, output in outputs.items()}, pull, tensors

    def refuse_lost(self) -> None:
        """Refuse an output whose derivative is lost to reverse mode, after a call in reverse mode.

        What a function computes under `torch.no_grad` is a constant to reverse mode. Forward mode does not
        know `no_grad`; a true constant, a detached tensor included, has no tangent there either.
        """
        constant = self.seen["constant"]
        if not constant or not self.primals:
            return
        # A direction without symmetry, along which no usual function stands still.
        direction = {
            path: torch.cos(torch.arange(tensor.numel())).reshape(tensor.shape).to(tensor)
            for path, tensor in self.primals.items()
        }
        try:
            tangents, _ = self.push(direction)
        except NotImplementedError:  # an operation without forward mode
            return
        for path in constant:
            if tangents[path].any():
                raise ComponentError(
                    f"The function computes {path!r} under `torch.no_grad()`, so torch has no derivative of "
                    "it in reverse mode. Remove `no_grad`: endpoints other than derivatives run without "
                    "gradients anyway. What is to be a constant is `.detach()`ed.",
                    code="derivative_lost",
                    path=path,
                )

    def outputs(self, tensors: Tensors) -> Any:
        """All outputs, with arrays for the tensors."""
        return set_at_path(self.seen["outputs"], _to_arrays(tensors))


def _narrow(
    apply_fn: Apply, inputs: Any, input_paths: Collection[str], output_paths: Collection[str]
) -> _Narrowed:
    tree = _to_tensors(inputs)
    primals, exact = _by_exactness(_select(tree, canonical(input_paths)))
    seen: dict[str, Any] = {}

    def function(values: Tensors) -> tuple[Tensors, tuple[Tensors, Tensors]]:
        outputs = seen["outputs"] = apply_fn(set_at_path(tree, values))
        leaves = flatten_with_paths(outputs)
        tensors = {path: leaf for path, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
        selected = canonical(output_paths)
        _require_tensors(outputs, selected)
        varying, fixed = _by_exactness(_select(outputs, selected))
        seen["constant"] = [path for path, tensor in varying.items() if not tensor.requires_grad]
        return varying, (fixed, tensors)

    return _Narrowed(function, primals, exact, seen)


def _select(tree: Any, paths: tuple[str, ...]) -> Tensors:
    return {path: _numeric(get_at_path(tree, path), path) for path in paths}


def _numeric(leaf: Any, path: str) -> torch.Tensor:
    if isinstance(leaf, (bool, int, float, complex)):
        return torch.as_tensor(leaf)
    if not isinstance(leaf, torch.Tensor):
        raise not_differentiable(path, type(leaf).__name__)
    return leaf


def _require_tensors(outputs: Any, paths: tuple[str, ...]) -> None:
    """Refuse what left torch on its way: its derivative would be zero, or an error that does not say why."""
    for path in paths:
        leaf = get_at_path(outputs, path)
        if isinstance(leaf, float | complex | np.ndarray | np.generic):
            raise ComponentError(
                f"The function returns {describe_value(leaf)} at {path!r}, which is not a tensor, so torch "
                "has no derivative of it: `.item()`, `float(…)` and `.numpy()` lose it. Return the tensor; "
                "a constant is `torch.tensor(…)`.",
                code="derivative_lost",
                path=path,
            )


def _by_exactness(tensors: Tensors) -> tuple[Tensors, Tensors]:
    inexact = {p: t for p, t in tensors.items() if t.is_floating_point() or t.is_complex()}
    return inexact, {path: t for path, t in tensors.items() if path not in inexact}


def _conjugated(tensors: Tensors) -> Tensors:
    """torch pulls back with the conjugate transpose, Jᴴu; a VJP here, as in JAX, is the plain one, Jᵀu.

    Jᵀu is the conjugate of Jᴴ applied to the conjugate of u, so conjugating before and after turns one
    into the other. Real numbers are not changed.
    """
    return {path: tensor.conj() for path, tensor in tensors.items()}


def _fit(vector: Mapping[str, Any], like: Tensors, batched: bool) -> Tensors:
    """Tangents or cotangents in the shapes and dtypes of what they belong to."""
    fitted = {}
    for path, tensor in like.items():
        value = _tensor(vector[path])
        check_real(value.is_complex(), tensor.is_complex(), path)
        check_shape(tuple(value.shape), tuple(tensor.shape), path, batched=batched)
        fitted[path] = value.to(tensor)
    return fitted


def _zeros(tensors: Tensors) -> Tensors:
    return {path: torch.zeros_like(tensor) for path, tensor in tensors.items()}


def _size(tensors: Tensors) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


def _to_tensors(inputs: Any) -> Any:
    return map_leaves(_to_tensor, dumped(inputs))


def _to_tensor(leaf: Any) -> Any:
    if is_tensor(leaf):
        return leaf
    is_numeric = is_arraylike(leaf) and number_kind(np.asarray(leaf).dtype) in "biufc"
    return _tensor(leaf) if is_numeric else leaf


def _tensor(value: Any) -> torch.Tensor:
    # Copied: this function may be called several times with one array, and torch code may overwrite it.
    return value if is_tensor(value) else tensor_of(value)


def _to_array(leaf: Any) -> Any:
    """A NumPy array of a tensor; one on a GPU stays there."""
    return leaf.detach() if is_on_device(leaf) else to_host(leaf)


def _to_arrays(tensors: Tensors) -> dict[str, np.ndarray]:
    return {path: _to_array(tensor) for path, tensor in tensors.items()}


def _empty(node: Any, *, device: str) -> Any:
    if not is_abstract(node):
        return node
    shape, dtype = shape_and_dtype(node)
    name = str(dtype)
    # NumPy knows this name only after `ml_dtypes` is imported.
    known = name if name == "bfloat16" else np.dtype(dtype).name
    return torch.empty(shape, dtype=getattr(torch, known), device=device)


def _aval(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return {"shape": tuple(leaf.shape), "dtype": dtype_name(leaf)}
