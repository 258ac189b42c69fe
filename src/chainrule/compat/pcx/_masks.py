"""`M`: a native mask with the ancestor's two further ways to ask it."""

from __future__ import annotations

from typing import Any

from chainrule.stateful import Mask


class M(Mask):
    """A selection of parameters, by kind, predicate, attribute, or a combination.

    Example:
        >>> from chainrule.compat import pcx
        >>> weights = pcx.utils.M(pcx.nn.LayerParam).to((False, True))
        >>> weights.apply(pcx.Param(0.0)), weights.apply(pcx.nn.LayerParam(0.0))
        (False, True)
    """

    __slots__ = ()

    def __init__(self, mask: Any = None) -> None:
        super().__init__(mask)

    def apply(self, leaf: Any) -> Any:
        """Whether the mask selects one parameter, whatever `to` makes of that."""
        return self.matches(leaf)

    def __call__(self, pydag: Any, is_pytree: bool = False) -> Any:
        """The tree with only the selected parameters, `None` for others; or with the chosen values.

        Args:
            pydag: modules, parameters and containers.
            is_pytree: accepted; sharing is always seen.
        """
        return super().__call__(pydag)

    def to(self, map_to: Any) -> M:
        """A mask that answers with `map_to[0]` when off and `map_to[1]` when on."""
        return M(super().to(map_to))

    def has(self, **attributes: Any) -> M:
        """And: every attribute is present and equal."""
        return M(super().has(**attributes))

    def hasnot(self, **attributes: Any) -> M:
        """And: every attribute is absent or different."""
        return M(super().hasnot(**attributes))

    def __or__(self, other: Any) -> M:
        return M(super().__or__(other))

    def __and__(self, other: Any) -> M:
        return M(super().__and__(other))

    def __invert__(self) -> M:
        return M(super().__invert__())


def M_is(*masks: Any) -> M:  # noqa: N802 - the ancestor's name
    """What all masks select."""
    combined = M()
    for mask in masks:
        combined = combined & mask
    return combined


def M_has(mask: Any, **attributes: Any) -> M:  # noqa: N802
    """What a mask selects and has these attributes."""
    return M(mask).has(**attributes)


def M_hasnot(mask: Any, **attributes: Any) -> M:  # noqa: N802
    """What a mask selects and does not have these attributes."""
    return M(mask).hasnot(**attributes)
