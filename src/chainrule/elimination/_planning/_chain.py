"""The cheapest Jacobian of a chain of sites, exactly.

Sites 1 … p, site k from n(k-1) to n(k) numbers. Let C(i, k) be the price of the Jacobian of sites i … k as a
matrix. It comes about in one of these ways (Naumann, "Matrix-Free Jacobian Chaining", 2024):

    C(i, i) = min( n(i-1) JVPs, n(i) VJPs, own Jacobian, coloured columns or rows ) of site i
    C(i, k) = min( C(i, k-1) + n(i-1) JVPs of site k,               push the columns through one site more
                   C(i+1, k) + n(k) VJPs of site i,                 pull the rows back through one more
                   C(i, l) + C(l+1, k) for the best l,              multiply
                   C(i, k-1) + C(k, k), C(i, i) + C(i+1, k) )       which are among the last

Pushing through several sites is pushing through one after the other, so one step at a time is enough.
Multiplications of matrices are not priced: they take microseconds where a product of a site takes at least a
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, itemgetter

from chainrule.elimination._planning._prices import SitePrices, Way

Move = tuple[int, Way, int]
"""A site, the way it is asked, and the place in the chain (0 … p) whose columns or rows it gets."""


def plan_chain(sizes: Sequence[int], prices: Sequence[SitePrices]) -> tuple[float, list[Move]]:
    """The lowest price, and the moves in an order in which they can be made.

    Args:
        sizes: n(0) … n(p).
        prices: of the sites 1 … p, which are numbered from 0 in the moves.
    """
    count = len(prices)
    # total[i][k - i] is C(i, k), and ending[k][k - i] the same by its end; both grow with the length.
    total: list[list[float]] = []
    split: dict[tuple[int, int], int | Way] = {}
    for k in range(count):
        counts: dict[Way, int] = {"columns": sizes[k], "rows": sizes[k + 1]}
        counts.update(prices[k].whole(sizes[k], sizes[k + 1]))
        best, _, split[k, k] = min(
            (_choice(prices[k], way, n) for way, n in counts.items()), key=itemgetter(0, 1)
        )
        total.append([best])
    ending = [list(row) for row in total]
    for length in range(1, count):
        for i in range(count - length):
            k = i + length
            inner = ending[k][::-1]  # C(i+1, k), …, C(k, k)
            parts = list(map(add, total[i], inner))
            least = min(parts)
            best, _, split[i, k] = min(
                (least, False, i + parts.index(least)),
                _choice(prices[k], "columns", sizes[i], total[i][-1]),
                _choice(prices[i], "rows", sizes[k + 1], ending[k][-1]),
                key=itemgetter(0, 1),
            )
            total[i].append(best)
            ending[k].append(best)
    return total[0][-1], _moves(split, count)


def _choice(
    prices: SitePrices, way: Way, vectors: int, before: float = 0.0
) -> tuple[float, bool, Way]:
    """The price of a way, what comes before it included; whether it is a derived one; the way."""
    return before + prices.of(way, vectors), prices.is_derived(way), way


def _moves(split: dict[tuple[int, int], int | Way], count: int) -> list[Move]:
    """The moves of the best choices, from the innermost on; with a stack, since chains may be long."""
    moves: list[Move] = []
    waiting = [(0, count - 1)]
    while waiting:
        i, k = waiting.pop()
        choice = split[i, k]
        if isinstance(choice, int):
            waiting += [(i, choice), (choice + 1, k)]
        elif choice == "rows":
            moves.append((i, "rows", k + 1))
            waiting += [(i + 1, k)] if i < k else []
        else:
            moves.append((k, choice, i))
            waiting += [(i, k - 1)] if i < k else []
    # What was found last is inside of what was found before.
    return moves[::-1]
