"""Components that compute on a GPU: `@component(framework="torch", device="cuda")`.

    torch     the author's functions get tensors on the GPU
    cupy      arrays of CuPy; there is no CPU to fall back to
    warp      arrays of Warp; on a GPU only, too
    device    arrays of CuPy, or tensors where CuPy is not installed; anything with `__dlpack__` may come back

A module says the same with two names: `framework = "cupy"`, `device = "cuda"`.

`OnDevice` wraps each function of the author: arrays of the request are moved to the GPU if they are not
there, and results go back to the host only if no array of the request was on the GPU. So a caller whose
arrays are on the GPU (`chainrule.bridge` in a compiled program) gets its results there, and a server, which
reads bytes from the network, gets NumPy arrays.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from chainrule._device import (
    DeviceLibrary,
    is_on_device,
    is_tensor,
    library_for,
    own_copy_of_array,
    to_host,
)
from chainrule._errors import DefinitionError, missing_dependency
from chainrule._trees import is_arraylike, map_leaves
from chainrule.runtime._component._definition import Implementation
from chainrule.runtime._residuals import RESIDUALS, WithResiduals
from chainrule.runtime._schema import number_kind

_log = logging.getLogger(__name__)

Device = Literal["cuda", "cuda-only"]
"""Where a component computes: on a GPU if there is one, or on a GPU and nowhere else."""
_FRAMEWORKS = ("torch", "cupy", "warp", "device")


@dataclass(frozen=True)
class Place:
    """A GPU, and what holds the arrays of an author's functions there.

    Attributes:
        library: holds arrays while they are validated, copied and exchanged with JAX.
        warp: the module of Warp, for a component that works with its arrays.
        keeps_inputs: whether the author's functions may keep or overwrite the arrays that they get.
    """

    library: DeviceLibrary
    warp: Any = None
    keeps_inputs: bool = True

    def holds_for_author(self, value: Any) -> bool:
        """Whether a value is an array on the GPU that goes to the author, and comes from him, as it is."""
        return self.warp is None and self.library.holds(value)

    def to_author(self, leaf: Any) -> Any:
        """An array of a request as the author's functions take it."""
        if not _has_numbers(leaf):
            return leaf
        array = self.library.from_anywhere(leaf)
        return array if self.warp is None else self.warp.from_dlpack(array)

    def from_author(self, leaf: Any, *, stays: bool) -> Any:
        """An array of a result, on the device or on the host."""
        if is_tensor(leaf) and not leaf.is_cuda:
            return to_host(leaf)
        if not is_on_device(leaf):
            return leaf
        if is_tensor(leaf):
            leaf = leaf.detach()
        array = leaf if self.library.holds(leaf) else self.library.view(leaf)
        return array if stays else to_host(array)


def find_place(
    framework: str | None, device: str | None, keeps_inputs: bool = True
) -> Place | None:
    """Where a component computes, by what its author declares; `None` for the host.

    Raises:
        DefinitionError: the declaration makes no sense (`bad_device`), or a GPU is missing that the component
            cannot do without (`no_device`).
        CapabilityError: the framework is not installed (`missing_dependency`).
    """
    needs_gpu = device == "cuda-only" or framework in ("cupy", "warp")
    if device is None and framework not in ("cupy", "warp", "device"):
        return None
    if device not in (None, *get_args(Device)) or framework not in _FRAMEWORKS:
        raise DefinitionError(
            f"device={device!r} with framework={framework!r}: `device` is 'cuda' (a GPU where there is one) "
            f"or 'cuda-only', and `framework` one of {', '.join(map(repr, _FRAMEWORKS))}.",
            code="bad_device",
        )
    try:
        library = library_for(framework)
        warp = importlib.import_module("warp") if framework == "warp" else None
    except ModuleNotFoundError as error:
        raise missing_dependency(
            f"framework={framework!r} needs", error.name, str(error.name)
        ) from error
    if library.is_usable():
        return Place(library, warp, keeps_inputs)
    if needs_gpu:
        raise DefinitionError(
            f"This component computes on a CUDA device and nowhere else (framework={framework!r}, "
            f"device={device!r}), and none is usable here. Look at `nvidia-smi`, or declare device='cuda' "
            "with framework='torch' or 'device', which fall back to the CPU.",
            code="no_device",
        )
    _log.warning("No CUDA device is usable here: a component that declares one runs on the CPU.")
    return None


class OnDevice:
    """An author's function whose arrays are on a GPU; see the module's docstring.

    Args:
        function: the author's.
        place: the GPU.
        takes_trees: whether it takes plain trees in place of models.

    Attributes:
        holds: whether an array is on the GPU in the form in which the function takes it.
        own: an array of a caller as the author gets it.
    """

    def __init__(
        self, function: Callable[..., Any], place: Place, *, takes_trees: bool = False
    ) -> None:
        functools.update_wrapper(self, function)
        self.takes_trees = takes_trees
        self._function = function
        self._place = place
        self.holds = place.holds_for_author
        self.own = own_copy_of_array if place.keeps_inputs else _as_it_is

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        """Call the function with arrays on the GPU."""
        stays = False

        def move(leaf: Any) -> Any:
            nonlocal stays
            stays = stays or is_on_device(leaf)
            return self._place.to_author(leaf)

        moved = tuple(map_leaves(move, each) for each in inputs)
        # Paths are sets of text, and residuals are where the author left them.
        kept = {
            name for name, each in arguments.items() if name == RESIDUALS or isinstance(each, Set)
        }
        named = {
            name: each if name in kept else map_leaves(move, each)
            for name, each in arguments.items()
        }
        return self.bring_back(self.run(*moved, **named), stays=stays)

    def run(self, *inputs: Any, **arguments: Any) -> Any:
        """Call the function with arrays that are on the GPU already; what comes back is as it is."""
        library = self._place.library
        library.let_default_stream_wait()
        try:
            return self._function(*inputs, **arguments)
        finally:  # also of work that has failed: it may still read what is XLA's
            library.wait_for_default_stream()

    def bring_back(self, result: Any, *, stays: bool = True) -> Any:
        """The result of `run` with arrays of the library on the GPU, or with arrays of the host."""
        back = functools.partial(self._place.from_author, stays=stays)
        if isinstance(result, WithResiduals):
            return replace(result, outputs=map_leaves(back, result.outputs))
        return map_leaves(back, result)


def _as_it_is(array: Any) -> Any:
    return array


def _has_numbers(leaf: Any) -> bool:
    if is_on_device(leaf) or is_tensor(leaf):
        return True
    return is_arraylike(leaf) and number_kind(np.asarray(leaf).dtype) in "biufc"


def on_device(
    implementations: Mapping[str, Implementation],
    place: Place | None,
    *,
    takes_trees: bool = False,
) -> Mapping[str, Implementation]:
    """The same implementations with arrays on the GPU; shapes have no place.

    Args:
        implementations: by endpoint.
        place: the GPU, if it is one.
        takes_trees: as of `OnDevice`.
    """
    if place is None:
        return implementations
    return {
        name: each
        if name == "abstract_eval"
        else replace(
            each,
            function=OnDevice(each.function, place, takes_trees=takes_trees),
            capability=replace(each.capability, on_device=True),
        )
        for name, each in implementations.items()
    }
