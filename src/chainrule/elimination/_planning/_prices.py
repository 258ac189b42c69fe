"""What products with the Jacobian of a site cost, and where the prices come from.

One product is a JVP or a VJP with one vector. A request for several vectors costs

    messages · (price of a message) + vectors · (price of a product),

where a component that takes batches gets all vectors in one message, any other one message per vector.

A price is taken from the first of these that knows it: what the caller gives, what the author declares, what
was measured (where the caller asks for that), and the kind of endpoint, which says how many evaluations of
the component it makes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from chainrule._call_prices import problem_of_prices
from chainrule._errors import InputError
from chainrule._jaxpr import Offer, OutsideCall, equations_inside
from chainrule.elimination._work import equation_work

if TYPE_CHECKING:
    from chainrule.elimination._planning._sites import Site

Way = Literal["columns", "rows", "jacobian", "coloured columns", "coloured rows"]
"""How a site is asked. JVPs with the columns of a cut, or VJPs with its rows; or for its own Jacobian: by its
endpoint, or, where that is known to be sparse, by JVPs or VJPs that carry several columns or rows each."""

_BACKWARDS: tuple[Way, ...] = ("rows", "coloured rows")


def is_backwards(way: Way) -> bool:
    """Whether a way sends cotangents."""
    return way in _BACKWARDS


def name_of_product(way: Way) -> str:
    """What a site is asked for, in words."""
    return "Jacobian" if way == "jacobian" else "VJP" if is_backwards(way) else "JVP"


@dataclass(frozen=True)
class SitePrices:
    """Prices of one site; infinite where it cannot be asked so.

    Attributes:
        jvp: of one product with the Jacobian.
        vjp: of one product with the transposed Jacobian.
        jacobian: of the site's own Jacobian.
        message: of one message, of any size.
        batches: the endpoints, `"jvp"` and `"vjp"`, that take many vectors in one message.
        derived: the endpoints that are made of products in the other direction. Where one costs the same as
            another way, the other way is taken.
        residuals: the endpoints that go on from what the evaluation of the site has kept.
        residual_bytes: how much that is.
        calls: of components that one product makes: those of a loop or a batch are several.
        column_colours: of a sparse Jacobian, how many JVPs give all of it.
        row_colours: how many VJPs do.
        source: where the prices come from, in words.
    """

    jvp: float = 1.0
    vjp: float = 1.0
    jacobian: float = math.inf
    message: float = 0.0
    batches: frozenset[str] = frozenset()
    derived: frozenset[str] = frozenset()
    residuals: frozenset[str] = frozenset()
    residual_bytes: int = 0
    calls: int = 1
    column_colours: int | None = None
    row_colours: int | None = None
    source: str = "kind of endpoint"

    def messages(self, way: Way, vectors: int) -> int:
        """The number of messages of a request."""
        return 1 if way == "jacobian" or _endpoint(way) in self.batches else vectors

    def of(self, way: Way, vectors: int) -> float:
        """The price of a request; of a Jacobian, however many vectors it takes the place of."""
        if vectors == 0:
            return 0.0
        sent = self.messages(way, vectors) * self.message
        if way == "jacobian":
            return sent + self.jacobian
        return sent + vectors * (self.vjp if is_backwards(way) else self.jvp)

    def memory(self, way: Way) -> int:
        """The bytes that the site keeps from its evaluation until it is asked in a way."""
        return self.residual_bytes if _endpoint(way) in self.residuals else 0

    @property
    def can_keep_nothing(self) -> bool:
        """Whether there is a way for which the site keeps nothing."""
        prices = {"jvp": self.jvp, "vjp": self.vjp, "jacobian": self.jacobian}
        return any(p < math.inf and name not in self.residuals for name, p in prices.items())

    def keeping_nothing(self) -> SitePrices:
        """Without the ways for which the site keeps something."""
        return replace(
            self,
            jvp=math.inf if "jvp" in self.residuals else self.jvp,
            vjp=math.inf if "vjp" in self.residuals else self.vjp,
            jacobian=math.inf if "jacobian" in self.residuals else self.jacobian,
        )

    def is_derived(self, way: Way) -> bool:
        """Whether a way is made of products in the other direction."""
        return _endpoint(way) in self.derived

    def whole(self, columns: int, rows: int) -> Iterator[tuple[Way, int]]:
        """The ways to the whole Jacobian of this many columns and rows without a cut, and their products."""
        if self.jacobian < math.inf and min(columns, rows) > 0:
            yield "jacobian", min(columns, rows)
        if self.column_colours is not None:
            yield "coloured columns", self.column_colours
        if self.row_colours is not None:
            yield "coloured rows", self.row_colours


def _endpoint(way: Way) -> str:
    return "jacobian" if way == "jacobian" else "vjp" if is_backwards(way) else "jvp"


# --- Where they come from.

GivenPrices = Mapping[str, Mapping[str, float]] | Literal["measured"]
"""Component → what is priced → price; or those that were measured."""

_AFTER_RESIDUALS = 0.5
"""What is left of a product that need not begin with an evaluation: a VJP is an evaluation and a backward
pass of about the same length (benchmarks, "VJP after apply, residuals reused": 0.43)."""


def check_prices(given: GivenPrices, sites: Sequence[Site]) -> None:
    """Refuse prices that cannot be read, or are those of other components.

    Raises:
        InputError: with the name.
    """
    if isinstance(given, str) and given == "measured":
        return
    names = list(dict.fromkeys(call.name for site in sites for call in site.calls))
    if not isinstance(given, Mapping):
        raise _bad_prices(
            "`prices` is 'measured', or a dictionary from names of components to their prices, such as "
            f"{{{names[0]!r}: {{'vjp': 2.5}}}}; found {given!r:.40}."
        )
    for name, prices in given.items():
        if name not in names:
            raise _bad_prices(
                f"`prices` names {name!r}, which the pipeline does not call; it calls "
                f"{', '.join(map(str, names))}."
            )
        problem = problem_of_prices(prices)
        if problem is not None:
            raise _bad_prices(f"`prices` of {name!r}: {problem}.")


def _bad_prices(message: str) -> InputError:
    return InputError(message, code="bad_prices")


def site_prices(site: Site, given: GivenPrices) -> SitePrices:
    """The prices of a site.

    Raises:
        InputError: a price is given for a request that the component does not answer (`bad_prices`).
    """
    kinds = _opaque_prices(site) if site.products is None else _prices_by_kind(site)
    if site.compression is not None:
        columns, rows = site.compression.columns.count, site.compression.rows.count
        kinds = replace(kinds, column_colours=columns, row_colours=rows)
    chosen, sources = zip(*(_chosen_prices(call, given) for call in site.calls), strict=True)
    if not any(chosen):
        return kinds
    if site.products is None:
        return _of_calls_inside(kinds, chosen, sources)
    (prices,), (source,) = chosen, sources
    if not isinstance(given, str):  # a product that is made of others has been measured as such
        _check_answered(site, prices, kinds)
    apply = prices.get("apply", 1.0)
    by_kind = {"jvp": kinds.jvp, "vjp": kinds.vjp, "jacobian": kinds.jacobian}
    # What makes several evaluations may make them as products, which can be dearer than `apply`.
    known = [prices[name] / kind for name, kind in by_kind.items() if name in prices]
    several = max(apply, *known) if known else apply

    def price(name: str) -> float:
        kind = by_kind[name]
        return prices.get(name, kind * (several if kind > 1 else apply))

    return replace(
        kinds,
        jvp=price("jvp"),
        vjp=price("vjp"),
        jacobian=price("jacobian"),
        message=prices.get("message", 0.0),
        residual_bytes=int(prices.get("residual_bytes", kinds.residual_bytes)),
        source=source,
    )


def _chosen_prices(call: OutsideCall, given: GivenPrices) -> tuple[Mapping[str, float], str]:
    """Prices of a component that are not by kind, and where they come from."""
    declared = call.prices
    if isinstance(given, str):
        return {**call.measure(), **declared}, "author" if declared else "measurement"
    own = given.get(str(call.name), {})
    return {**declared, **own}, "given" if own else "author"


def _check_answered(site: Site, prices: Mapping[str, float], kinds: SitePrices) -> None:
    """Refuse a price of something that the component cannot answer itself: no plan could keep to it."""
    missing = set(kinds.derived) | ({"jacobian"} if kinds.jacobian == math.inf else set())
    for request in sorted(missing & prices.keys()):
        has = "Jacobian endpoint" if request == "jacobian" else f"{request} of its own"
        raise _bad_prices(
            f"`prices` of {site.name!r} has one for {request!r}, but {site} has no {has}. Leave it out: "
            "what is made of other products costs what these cost."
        )


def _of_calls_inside(
    kinds: SitePrices, chosen: Sequence[Mapping[str, float]], sources: Sequence[str]
) -> SitePrices:
    """The prices of an opaque site: all its calls cost what they cost on average."""

    def mean(request: str) -> float:
        return sum(each.get(request, each.get("apply", 1.0)) for each in chosen) / len(chosen)

    return replace(
        kinds, jvp=kinds.jvp * mean("jvp"), vjp=kinds.vjp * mean("vjp"),
        source=next(s for s, prices in zip(sources, chosen, strict=True) if prices),
    )  # fmt: skip


def _prices_by_kind(site: Site) -> SitePrices:
    """An endpoint costs as many evaluations as it makes of the component."""
    assert site.products is not None
    offers = site.products.offers(site.operands, site.results)

    def price(offer: Offer) -> float:
        return offer.evaluations * (_AFTER_RESIDUALS if offer.residuals else 1.0)

    def those(what: str) -> frozenset[str]:
        return frozenset(name for name, offer in offers.items() if getattr(offer, what))

    return SitePrices(
        price(offers["jvp"]),
        price(offers["vjp"]),
        price(offers["jacobian"]) if "jacobian" in offers else math.inf,
        batches=those("batches"),
        derived=those("derived"),
        residuals=those("residuals"),
        residual_bytes=site.nbytes,
    )


def _opaque_prices(site: Site) -> SitePrices:
    """One evaluation per call inside, as often as it is made; by JAX's own rules, where it has them."""
    eqn = site.equation
    calls = equation_work(eqn).calls
    names = {each.primitive.name for each in (eqn, *equations_inside(eqn))}
    has_jvp = not any("custom_vjp" in name for name in names)
    return SitePrices(
        calls if has_jvp else math.inf,
        calls if "while" not in names else math.inf,
        residuals=frozenset({"vjp"}),
        residual_bytes=site.nbytes,
        calls=math.ceil(calls),
    )
