"""Sites with a batch axis in front, for targets that say how they batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from chainrule._errors import ChainruleError, ComponentError
from chainrule.bridge._requests import Request
from chainrule.bridge._routes import answer
from chainrule.bridge._site import Site, make_site

_BY_CALLER = ("expand_dims", "broadcast_all")
BY_DECLARATION = ("auto", "auto_experimental")


def is_native(site: Site, request: Request) -> bool:
    """Whether a request may be answered by one call with one more leading axis."""
    if request.name not in ("apply", "jvp", "vjp"):
        return False
    if site.options.vmap_method in _BY_CALLER:
        return True
    if site.options.vmap_method not in BY_DECLARATION:
        return False
    if site.target.batching == "leading":
        return site.example is None  # one axis was promised, not two
    # Broadcasting aligns axes from the right: arrays of different ranks would meet at the wrong ones.
    same_rank = len({len(port.type.shape) for port in site.inputs}) == 1
    return site.target.batching == "elementwise" and same_rank


def batched_site(site: Site, size: int, leading: Sequence[int]) -> Site | None:
    """The site with `leading[i]` in front of input `i`; `None` if the target cannot be called so.

    A schema that fixes ranks, or outputs that do not all gain the axis, mean that it cannot.
    """
    key = (size, *leading)
    if key not in site.batched:
        site.batched[key] = _make_batched(site, size, leading)
    return site.batched[key]


def broadcast_site(site: Site) -> Site:
    """The site in which every input has the whole batch in front, also those with a 1 there.

    Derivatives are asked of it: an endpoint that treats leading axes as batch axes does not sum over them.
    """
    if site.example is None or not site.outputs:
        return site
    inner = broadcast_site(site.example)
    size = site.outputs[0].type.shape[0]
    return batched_site(inner, size, [size] * len(site.inputs)) or site


def _make_batched(site: Site, size: int, leading: Sequence[int]) -> Site | None:
    ports = zip(site.inputs, leading, strict=True)
    types = [port.type.with_leading(lead) for port, lead in ports]
    try:
        found = make_site(site.target, site.options, site.input_skeleton, types, site.canonicalize)
    except ChainruleError:
        return None
    expected = [port.type.with_leading(size) for port in site.outputs]
    return replace(found, example=site) if [p.type for p in found.outputs] == expected else None


def check_first_example(
    site: Site, request: Request, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
) -> None:
    """Compare the first example of a native batch with a call of its own.

    Raises:
        ComponentError: they differ, so the component does not batch as was said.
    """
    assert site.example is not None
    alone = answer(site.example, request, [operand[0] for operand in operands])
    for port, one, many in zip(request.result.ports(site), alone, results, strict=True):
        tolerance = 100 * float(np.sqrt(np.finfo(many.dtype).eps)) if many.dtype.kind in "fc" else 0
        if not np.allclose(one, many[0], rtol=tolerance, atol=tolerance, equal_nan=True):
            raise ComponentError(
                f"`{request.name}` of {site.target.name} with a batch axis in front gives another result at "
                f"`{port.path}` for the first example than without: it does not treat leading axes as "
                'batch axes. Remove its `batching` declaration, or use `vmap_method="concurrent"`.',
                code="batching_mismatch",
                path=port.path,
            )
