"""Nested variables as one vector in double precision, with their names and bounds.

A function of nested data takes any pytree of floating-point arrays; the leaves come in the order of JAX,
which sorts the keys of dictionaries. Of a component's inputs the differentiable arrays are variables, in the
order of its schema; everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from chainrule._describe import describe_value
from chainrule._doors import real_leaves
from chainrule._errors import InputError
from chainrule._jaxpr import NOT_TRACEABLE
from chainrule._paths import Key, Segment, join_path
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime import Bounds
from chainrule.runtime.internal import Document, Layout, Leaf, complete_inputs

BoundsLike = Literal["schema"] | Mapping[str, Any] | None


@dataclass(frozen=True)
class Variables:
    """The variables of a problem.

    Attributes:
        leaves: the arrays, in the order of the vector.
        start: the vector at which to begin.
        lower: the smallest allowed value of every element.
        upper: the largest.
        rebuild: arrays in the order of the leaves → the tree that the function takes.
    """

    leaves: tuple[Leaf, ...]
    start: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    rebuild: Callable[[Sequence[Any]], Any]

    @property
    def layout(self) -> Layout:
        """Where the elements of each path are."""
        return Layout(
            tuple(each.path for each in self.leaves), tuple(each.shape for each in self.leaves)
        )

    @property
    def has_bounds(self) -> bool:
        """Whether an element is bounded."""
        return bool(np.isfinite(self.lower).any() or np.isfinite(self.upper).any())

    def name(self, element: int) -> str:
        """The path and index of an element, for messages."""
        path, index = self.layout.locate(element)
        return f"{path}[{', '.join(map(str, index))}]" if index else path

    def tree(self, vector: Any) -> Any:
        """The variables as the function takes them; the vector may be traced."""
        parts = self.layout.split(vector)
        return self.rebuild([parts[leaf.path].astype(leaf.dtype) for leaf in self.leaves])


def is_component(function: Any) -> bool:
    """Whether a function is a component, here or far away."""
    return hasattr(function, "openapi_schema") and hasattr(function, "apply")


def call_traced(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a user's function returns for traced arguments.

    Raises:
        InputError: it cannot be traced (`not_traceable`).
    """
    try:
        return function(*arguments)
    except NOT_TRACEABLE as error:
        name = getattr(function, "__name__", "the function")
        raise InputError(
            f"{name} cannot be traced by JAX: it hands its variables to NumPy or decides on their values. "
            "Write it with jax.numpy, or as a component with finite differences: "
            '@chainrule.component(derivatives="finite").',
            code="not_traceable",
        ) from error


def refuse_tracers(values: Any) -> None:
    """Refuse to run a solver inside of a transformation of JAX.

    Raises:
        InputError: a value is traced (`is_traced`).
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values)):
        raise InputError(
            "A solver needs numbers, and found values that JAX traces: call minimize and least_squares "
            "outside of jax.jit, jax.grad and jax.vmap. To differentiate a solution, use "
            "chainrule.fixed_point.",
            code="is_traced",
        )


def variables_of(
    function: Any, x0: Any, bounds: BoundsLike, free: Collection[str] | None
) -> Variables:
    """The variables of a component or a function at a starting point.

    Args:
        function: the component or function.
        x0: the point.
        bounds: as in `minimize`.
        free: paths of the variables among the leaves; `None` for all of them.

    Raises:
        InputError: nothing can vary, a variable is not a floating-point number or not finite (`bad_start`),
            the start is outside of the bounds (`out_of_bounds`), or the bounds cannot be read (`bad_bounds`).
    """
    refuse_tracers(x0)
    of_kind = _of_component if is_component(function) else _of_function
    leaves, arrays, rebuild = of_kind(function, x0)
    if free is not None:
        leaves, arrays, rebuild = _only_free(leaves, arrays, rebuild, free)
    if not any(leaf.size for leaf in leaves):
        raise InputError("There is nothing to vary: the start has no elements.", code="bad_start")
    for leaf, array in zip(leaves, arrays, strict=True):
        _check_finite(leaf, array)
    lower, upper = _read_bounds(leaves, bounds)
    start = np.concatenate([np.ravel(array).astype(float) for array in arrays])
    found = Variables(leaves, start, lower, upper, rebuild)
    _check_inside(found)
    return found


def _of_component(
    component: Any, x0: Any
) -> tuple[tuple[Leaf, ...], list[Any], Callable[..., Any]]:
    if not isinstance(x0, Mapping):
        raise InputError(
            f"Expected the inputs of {component.name} as a dictionary; found {describe_value(x0)}.",
            code="bad_start",
        )
    tree = complete_inputs(component, x0)
    document = Document(component.openapi_schema)
    leaves = real_leaves(document.leaves("inputs", tree), "a solver")
    if not leaves:
        raise InputError(
            f"There is nothing to vary: {component.name} has no differentiable input in {list(x0)}.",
            code="bad_start",
        )
    arrays = [np.asarray(get_at_path(tree, leaf.path), leaf.dtype) for leaf in leaves]
    paths = [leaf.path for leaf in leaves]
    return leaves, arrays, lambda parts: set_at_path(tree, dict(zip(paths, parts, strict=True)))


def _of_function(function: Any, x0: Any) -> tuple[tuple[Leaf, ...], list[Any], Callable[..., Any]]:
    found, structure = jax.tree_util.tree_flatten_with_path(x0)
    leaves, arrays = [], []
    for keys, value in found:
        path = join_path(*map(_segment, keys)) or "x"
        array = np.asarray(value)
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise InputError(
                f"Expected floating-point variables; {path} is {describe_value(value)}. Write 1.0 instead of "
                "1, and pass what does not vary by `functools.partial`.",
                code="bad_start",
                path=path,
            )
        leaves.append(Leaf(path, array.shape, array.dtype.name))
        arrays.append(array)
    return tuple(leaves), arrays, lambda parts: jax.tree.unflatten(structure, parts)


def _only_free(
    leaves: Sequence[Leaf],
    arrays: Sequence[Any],
    rebuild: Callable[..., Any],
    free: Collection[str],
) -> tuple[tuple[Leaf, ...], list[Any], Callable[..., Any]]:
    """The same with some leaves; the others stay as they are."""
    paths = [leaf.path for leaf in leaves]
    wrong = [free] if isinstance(free, str) else [path for path in free if path not in paths]
    if wrong:
        raise InputError(
            f"Expected free as a list of the paths that vary, out of {', '.join(paths)}; found {wrong[0]!r}.",
            code="path_unknown",
            path=str(wrong[0]),
        )
    places = [place for place, path in enumerate(paths) if path in free]

    def rebuilt(parts: Sequence[Any]) -> Any:
        whole = list(arrays)
        for place, part in zip(places, parts, strict=True):
            whole[place] = part
        return rebuild(whole)

    return tuple(leaves[p] for p in places), [arrays[p] for p in places], rebuilt


def _segment(key: Any) -> Segment:
    """A key of JAX's paths as a segment of ours."""
    found = next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name))
    return found if isinstance(found, int) or str(found).isidentifier() else Key(str(found))


def _check_finite(leaf: Leaf, array: np.ndarray) -> None:
    if not np.isfinite(array).all():
        index = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise InputError(
            f"Expected a start of finite numbers; element {index} of {leaf.path} is not one.",
            code="bad_start",
            path=leaf.path,
        )


def _read_bounds(leaves: Sequence[Leaf], bounds: BoundsLike) -> tuple[np.ndarray, np.ndarray]:
    """The limits of every element."""
    given = {leaf.path: (leaf.lower, leaf.upper) for leaf in leaves} if bounds == "schema" else {}
    if isinstance(bounds, Mapping):
        unknown = sorted(set(bounds) - {leaf.path for leaf in leaves})
        if unknown:
            raise InputError(
                f"Expected bounds of {', '.join(leaf.path for leaf in leaves)}; found {', '.join(unknown)}.",
                code="bad_bounds",
                path=unknown[0],
            )
        given = dict(bounds)
    elif bounds not in ("schema", None):
        raise InputError(
            f"Expected bounds='schema', None, or {{path: (lower, upper)}}, for example "
            f"{{{leaves[0].path!r}: (0, 1)}}; found {describe_value(bounds)}.",
            code="bad_bounds",
        )
    pairs = [_limits(leaf, given.get(leaf.path)) for leaf in leaves]
    lower, upper = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    return lower, upper


def _limits(leaf: Leaf, given: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(given, Bounds):
        given = given.smallest(leaf.dtype), given.largest(leaf.dtype)
    lower, upper = (None, None) if given is None else _pair(leaf, given)
    limits = []
    for limit, free in ((lower, -np.inf), (upper, np.inf)):
        try:
            limit = np.asarray(free if limit is None else limit, float)
            limits.append(np.broadcast_to(limit, leaf.shape).ravel())
        except ValueError as error:
            raise InputError(
                f"Expected bounds of {leaf.path} that fit its shape {list(leaf.shape)}; found "
                f"{describe_value(limit)}.",
                code="bad_bounds",
                path=leaf.path,
            ) from error
    if np.isnan(limits).any() or (limits[0] > limits[1]).any():
        raise InputError(
            f"Expected lower bounds of {leaf.path} that are not above the upper ones, and no NaN.",
            code="bad_bounds",
            path=leaf.path,
        )
    return limits[0], limits[1]


def _pair(leaf: Leaf, given: Any) -> tuple[Any, Any]:
    try:
        lower, upper = given
    except (TypeError, ValueError) as error:
        raise InputError(
            f"Expected the bounds of {leaf.path} as a pair (lower, upper), with None for no bound; found "
            f"{describe_value(given)}.",
            code="bad_bounds",
            path=leaf.path,
        ) from error
    return lower, upper


def _check_inside(variables: Variables) -> None:
    outside = (variables.start < variables.lower) | (variables.start > variables.upper)
    if outside.any():
        element = int(np.flatnonzero(outside)[0])
        raise InputError(
            f"Expected a start within the bounds; {variables.name(element)} is "
            f"{variables.start[element]:g}, and its bounds are {variables.lower[element]:g} and "
            f"{variables.upper[element]:g}.",
            code="out_of_bounds",
            path=variables.layout.locate(element)[0],
        )
