"""The cheapest Jacobian of a pipeline: which products are asked of which component, and asking them.

A pipeline is a function that calls components which are not inlined. The JAX between the calls takes
microseconds; one product with the Jacobian of a component takes milliseconds to hours. So the plan with the
fewest and cheapest products is made first, from shapes alone, and then executed.

    _prices     what products with the Jacobian of a site cost, and where the prices come from
    _network    a pipeline as arrays, sites and edges, without values; minimal cuts
    _search     the steps: an exact recurrence for sites in series; for other graphs best-first search with a
                bound, beam search beyond; within a limit on what sites keep
    _colouring  sites with sparse Jacobians: few products give all of it
    _sites      from the graph of a traced function to its sites and network
    _schedule   which steps wait for which, and the time that several workers take
    _execute    carrying out steps on values: asking sites for products
    _plan       `Plan`, `plan_jacobian`
"""

from chainrule.elimination._planning._plan import (
    Plan,
    PlannedRequest,
    make_plan,
    pipeline_work,
    plan_and_run,
    plan_jacobian,
    why_not_planned,
)

__all__ = [
    "Plan",
    "PlannedRequest",
    "make_plan",
    "pipeline_work",
    "plan_and_run",
    "plan_jacobian",
    "why_not_planned",
]
