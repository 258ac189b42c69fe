"""`Plan`: what is asked of the components of a pipeline for its Jacobian, as an object that is executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from chainrule._describe import describe_array
from chainrule._errors import CapabilityError, InputError
from chainrule._jaxpr import locate
from chainrule._registry import provided
from chainrule._tables import NotedTable
from chainrule.elimination._graph import Graph, holder_of_a_callback
from chainrule.elimination._linearize import (
    Traced,
    arrange,
    as_arrays,
    as_examples,
    differentiated_leaves,
    trace_function,
)
from chainrule.elimination._orders import fingerprint
from chainrule.elimination._planning._execute import execute
from chainrule.elimination._planning._prices import GivenPrices, Way, name_of_product
from chainrule.elimination._planning._schedule import find_shortest, makespan
from chainrule.elimination._planning._search import (
    SiteStep,
    alternatives,
    find_steps,
    find_steps_within,
    gives_the_jacobian,
    own_jacobians,
    sweeps,
)
from chainrule.elimination._planning._sites import (
    Pipeline,
    find_pipeline,
    has_complex_site,
)
from chainrule.elimination._sweeps import Outcome
from chainrule.elimination._work import Work, partials_work

Argnums = int | Sequence[int]
PlanObjective = Literal["products", "time"]


@dataclass(frozen=True)
class PlannedRequest:
    """What is asked of one site.

    Attributes:
        site: the component's name.
        number: of the site, in the order in which the sites are called.
        where: the user's line that calls it; empty when JAX kept none.
        way: `"columns"`: JVPs; `"rows"`: VJPs; or the component's own Jacobian: `"jacobian"`: by its
            endpoint; `"coloured columns"`, `"coloured rows"`: by JVPs or VJPs with several columns or rows.
        vectors: what the columns or rows belong to, such as `f32[3]`; empty for its own Jacobian.
        products: with one vector each, that the component is asked for, or that a Jacobian takes the place
            of. In a loop or under `vmap` every call counts; so do those of all sides of a branch. How often
            a `while` loop runs is not known.
        messages: that carry them.
        price: of all of them.
        prices: where the prices come from.
        residual_bytes: what the component keeps for it, from its evaluation on.
        cut: numbers of the arrays of `vectors` in the pipeline.
    """

    site: str
    number: int
    where: str
    way: Way
    vectors: str
    products: int
    messages: int
    price: float
    prices: str
    residual_bytes: int = 0
    cut: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cut", tuple(self.cut))

    @property
    def asked(self) -> str:
        """What is asked, in words: `2 VJPs`."""
        if self.way == "jacobian":
            return "its Jacobian"
        coloured = ", coloured" if self.way.startswith("coloured") else ""
        return f"{_count(self.products, name_of_product(self.way))}{coloured}"


@dataclass(frozen=True)
class Plan:
    """The cheapest Jacobian of a pipeline, as far as products of its components are concerned.

    It prints as a table; a notebook shows the picture of `view.plan` above it. `save` and `load` keep it as
    JSON; `execute` carries it out.

    Attributes:
        requests: one per site, in the order in which they are made. Every site is applied once before.
        bound: no plan costs less.
        method: what found it.
        alternatives: name → products and price of `jax.jacfwd`, of `jax.jacrev`, and of asking every site
            for its Jacobian.
        inputs: shapes and dtypes of what is differentiated by.
        argnums: the arguments that are differentiated.
        workers: how many messages are under way at the same time when the plan is executed; `None` for one
            request after the other.
        makespan: the time until the last answer, in the unit of the prices.
        memory_bytes: the most that the components may keep for VJPs; `None` for any amount.
        links: which sites read what others compute, by their numbers; -1 stands for the inputs, and the
            number of sites for the outputs.
        fingerprint: of the program that it was made for.
        function: the pipeline.
    """

    requests: tuple[PlannedRequest, ...]
    bound: float
    method: str
    alternatives: Mapping[str, tuple[int, float]]
    inputs: tuple[str, ...]
    argnums: Argnums
    fingerprint: str
    workers: int | None
    makespan: float
    memory_bytes: float | None
    links: tuple[tuple[int, int], ...]
    function: Callable[..., Any] = field(repr=False, compare=False)

    @property
    def products(self) -> int:
        """Products that all sites are asked for."""
        return sum(request.products for request in self.requests)

    @property
    def messages(self) -> int:
        """Messages that carry them."""
        return sum(request.messages for request in self.requests)

    @property
    def price(self) -> float:
        """Of all requests."""
        return sum(request.price for request in self.requests)

    @property
    def residual_bytes(self) -> int:
        """What the components keep together for their VJPs, from their evaluation on."""
        return sum(request.residual_bytes for request in self.requests)

    @property
    def gap(self) -> float:
        """How far, relatively, the price may be above the lowest possible; 0 for a proven optimum."""
        return 0.0 if self.price <= self.bound else self.price / max(self.bound, 1e-300) - 1.0

    def execute(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """The value of the pipeline and its Jacobian, arranged like that of `jax.jacrev`.

        Args:
            *args: arguments of the pipeline, of the shapes and dtypes that the plan was made for.
            **kwargs: further arguments, which are not differentiated.

        Raises:
            InputError: the arguments have other shapes or dtypes, or the pipeline is another (`other_plan`);
                or the requests do not give the Jacobian, as in a file that was changed (`bad_plan`).
            ChainruleError: a component did not answer; the component and the product are named.
        """
        self._check_inputs(args)
        traced = trace_function(self.function, self.argnums, args, kwargs)
        pipeline = find_pipeline(traced.graph)
        self._check_pipeline(pipeline)
        steps = [
            SiteStep(request.number, request.way, request.cut, request.products, request.price)
            for request in self.requests
        ]
        if not gives_the_jacobian(pipeline.network, steps):
            raise InputError(
                f"The requests of the plan do not give the Jacobian of {_name(self.function)}: they ask some "
                "component not at all, twice, or for products with wrong vectors. Was the file of the plan "
                "changed? Make another one: `plan_jacobian(f)(*args)`.",
                code="bad_plan",
            )
        value, _, jacobian = run_steps(traced, pipeline, steps, workers=self.workers)
        return value, jacobian

    def _check_inputs(self, args: tuple[Any, ...]) -> None:
        """Before the pipeline is traced: a component would complain of a shape in its own words."""
        found = _input_types(differentiated_leaves(self.argnums, args)[1])
        if found != self.inputs:
            raise InputError(
                f"The plan was made for inputs {', '.join(self.inputs)}, and is executed with "
                f"{', '.join(found)}. Make another one: `plan_jacobian(f)(*args)`.",
                code="other_plan",
            )

    def _check_pipeline(self, pipeline: Pipeline) -> None:
        if _fingerprint(pipeline) != self.fingerprint:
            raise InputError(
                "The plan was made for another pipeline: the equations or the components of "
                f"{_name(self.function)} are not those that were planned, although its inputs are. Make "
                "another one: `plan_jacobian(f)(*args)`.",
                code="other_plan",
            )

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, as JSON; the function is not in it."""
        facts = {**self.__dict__, "requests": [asdict(request) for request in self.requests]}
        del facts["function"]
        Path(path).write_text(
            json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, path: str | Path, function: Callable[..., Any]) -> Plan:
        """The plan in a file.

        Args:
            path: of the file.
            function: the pipeline that it was made for, which is checked when the plan is executed.

        Raises:
            InputError: the file holds no plan (`bad_plan`).
        """
        try:
            facts = json.loads(Path(path).read_text(encoding="utf-8"))
            requests = tuple(PlannedRequest(**request) for request in facts.pop("requests"))
            alternatives = {k: tuple(v) for k, v in facts.pop("alternatives").items()}
            links = tuple((start, end) for start, end in facts.pop("links"))
            argnums = facts.pop("argnums")
            _check_options(facts["workers"], facts["memory_bytes"], "products")
            return cls(
                requests, alternatives=alternatives, links=links, inputs=tuple(facts.pop("inputs")),
                argnums=tuple(argnums) if isinstance(argnums, list) else argnums,
                function=function, **facts,
            )  # fmt: skip
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise InputError(
                f"Expected the JSON that `Plan.save` writes in {str(path)!r}, found something else: {error}.",
                code="bad_plan",
            ) from None

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The requests in words."""
        return [
            (
                str(number), request.site, request.asked, request.vectors, str(request.messages),
                f"{request.price:g}", request.prices,
            )
            for number, request in enumerate(self.requests, start=1)
        ]  # fmt: skip

    @property
    def summary(self) -> list[str]:
        """The totals, in sentences."""
        # A plan for the least time may cost more on purpose.
        proven = ": the optimum" if self.gap == 0 else f"; no plan costs less than {self.bound:g}"
        others = ", ".join(f"{name} {price:g}" for name, (_, price) in self.alternatives.items())
        lines = [
            f"{_count(self.products, 'product')} in {_count(self.messages, 'message')}, price "
            f"{self.price:g}{proven} ({self.method}).",
            f"Time: {self.makespan:g} with {_count(self.workers or 1, 'worker')}.",
            f"Prices of other ways: {others}.",
        ]
        if self.residual_bytes or self.memory_bytes is not None:
            limit = "" if self.memory_bytes is None else f" of at most {self.memory_bytes:,.0f}"
            lines.insert(2, f"Kept by the components: {self.residual_bytes:,}{limit} bytes.")
        return lines

    def __repr__(self) -> str:
        return f"<Plan: {self.summary[0]}>"

    def __str__(self) -> str:
        return str(self._table)

    def _repr_html_(self) -> str:
        return f"<div>{provided('plan_picture')(self).html()}{self._table.html()}</div>"

    @property
    def _table(self) -> NotedTable:
        return NotedTable(_COLUMNS, self.rows, self.summary, 110)


_COLUMNS = ("", "component", "is asked for", "vectors", "messages", "price", "prices by")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def plan_jacobian(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    prices: GivenPrices | None = None,
    workers: int | None = None,
    memory_bytes: float | None = None,
    objective: PlanObjective = "products",
) -> Callable[..., Plan]:
    """The function that plans the Jacobian of a pipeline: what is asked of each of its components.

    Args:
        fun: a function of pytrees that JAX can trace, with calls of components that are not inlined.
        argnums: which positional arguments to differentiate with respect to.
        prices: component → price of one `"apply"`, one `"jvp"`, one `"vjp"`, one `"jacobian"`, one
            `"message"`, all in one unit. Without them the author's are used (`prices` of a component), else
            the number of evaluations that an endpoint makes. `"measured"`: mean seconds of the calls that
            this process has made so far, else of those that a server reports (`/metrics`), where the author
            does not say; a component that was not called yet costs a second per evaluation.
        workers: how many messages `Plan.execute` has under way at the same time, outside of `jit`.
        memory_bytes: the most that the components together may keep of their evaluation for VJPs
            (residuals). A component whose VJP takes residuals keeps what its prices say
            (`"residual_bytes"`), else as much as its inputs and outputs; others keep nothing. A loop or
            branch that JAX differentiates keeps what JAX keeps.
        objective: what is made small: the price of all `"products"`, or the `"time"` until the last answer.

    Returns:
        A function of `fun`'s arguments (`jax.ShapeDtypeStruct`s will do) that returns a `Plan`. It applies no
        component.

    Raises:
        CapabilityError: the function calls no component, or cannot be planned (`not_planned`); or no plan
            keeps to `memory_bytes` (`too_little_memory`).
        InputError: a price or an option cannot be used (`bad_prices`, `invalid_option`).

    Example:
        >>> import jax, numpy as np
        >>> from chainrule import from_callable
        >>> total = from_callable(
        ...     lambda x: x.sum(keepdims=True),
        ...     jvp=lambda x, v: v[0].sum(keepdims=True),
        ...     vjp=lambda x, u: (np.full(5, u[0]),),
        ...     abstract=lambda x: jax.ShapeDtypeStruct((1,), x.dtype),
        ... )
        >>> plan = plan_jacobian(lambda x: total(x) * x)(np.ones(5))
        >>> plan.products, plan.alternatives["jacfwd"]
        (1, (5, 5.0))
    """

    _check_options(workers, memory_bytes, objective)

    @wraps(fun)
    def plan(*args: Any, **kwargs: Any) -> Plan:
        traced = trace_function(fun, argnums, as_examples(args), kwargs)
        check_planned(traced)
        return make_plan(
            traced, fun, argnums, prices=prices or {}, workers=workers, memory_bytes=memory_bytes,
            objective=objective,
        )  # fmt: skip

    return plan


def why_not_planned(traced: Traced) -> str | None:
    """What keeps a function from being planned; `None` if nothing does."""
    if traced.obstacle is not None:
        return f"its graph could not be built: {traced.obstacle}"
    if not traced.graph.sites:
        return (
            "it calls no component, or only such as are inlined or do not depend on what is differentiated; "
            "`jacobian` without `method` needs no plan"
        )
    if traced.graph.nonlinear:
        named = ", ".join(map(traced.graph.describe, traced.graph.nonlinear[:3]))
        return f"a derivative rule is not linear: {named}"
    if has_complex_site(traced.graph):
        return "a loop or branch around a component works on complex numbers"
    holder = holder_of_a_callback(traced.graph)
    if holder is not None:
        return f"the callback inside equation {traced.graph.describe(holder)} would run twice"
    return _why_too_large(traced.graph)


def check_planned(traced: Traced) -> None:
    """Refuse a function that cannot be planned.

    Raises:
        CapabilityError: with the reason.
    """
    reason = why_not_planned(traced)
    if reason is not None:
        raise CapabilityError(
            f"No products of components can be planned for the Jacobian of this function: {reason}.",
            code="not_planned",
        )


def pipeline_work(traced: Traced) -> Work:
    """The primal, the local Jacobians of the JAX parts, and the products of the cheapest plan."""
    pipeline = find_pipeline(traced.graph)
    return partials_work(pipeline.jax_graph) + Work(calls=find_steps(pipeline.network).price)


_MANY_ENTRIES = 1e8
"""Local Jacobians of JAX parts with more numbers than this are not formed."""


def _why_too_large(graph: Graph) -> str | None:
    for vertex, local in graph.partials.items():
        stored = max((each.stored for each in local.structures.values()), default=0)
        if stored > _MANY_ENTRIES and vertex not in graph.sites:
            return f"the local Jacobian of {graph.describe(vertex)} has {stored:,} entries"
    return None


def plan_and_run(traced: Traced, *, sparse: bool) -> Outcome:
    """The value, the auxiliary result and the Jacobian of a pipeline, by the cheapest plan.

    Raises:
        CapabilityError: it cannot be planned (`not_planned`), or a component lacks a derivative.
    """
    check_planned(traced)
    pipeline = find_pipeline(traced.graph)
    steps = find_steps(pipeline.network).steps
    return (run_steps_structured if sparse else run_steps)(traced, pipeline, steps)


def make_plan(
    traced: Traced,
    fun: Callable[..., Any],
    argnums: Argnums,
    *,
    prices: GivenPrices = MappingProxyType({}),
    workers: int | None = None,
    memory_bytes: float | None = None,
    objective: PlanObjective = "products",
) -> Plan:
    """The plan of a traced pipeline; see `plan_jacobian`."""
    pipeline = find_pipeline(traced.graph, prices, with_memory=memory_bytes is not None)
    network = pipeline.network
    found = (
        find_steps(network) if memory_bytes is None else find_steps_within(network, memory_bytes)
    )
    steps = found.steps
    if objective == "time":
        known = sweeps(network)
        steps = find_shortest(
            network, [steps, *known.values()], workers or 1, own_jacobians(network), memory_bytes
        )
    return Plan(
        tuple(_request(pipeline, step) for step in steps),
        found.bound,
        found.method,
        alternatives(pipeline.network),
        _input_types(traced.operands),
        argnums,
        _fingerprint(pipeline),
        workers,
        makespan(pipeline.network, steps, workers or 1),
        memory_bytes,
        pipeline.network.links,
        fun,
    )


def _fingerprint(pipeline: Pipeline) -> str:
    """A hash of the program and of its network, to which the requests of a plan refer.

    Numbers in the program do not enter: a plan is good for all values of arguments that are not
    differentiated, unless these change the network (a factor of zero, say).
    """
    network = pipeline.network
    places = [[site.operands, site.results] for site in network.sites]
    facts = [network.sizes, network.successors, places, network.inputs, network.outputs]
    content = json.dumps([fingerprint(pipeline.graph, with_numbers=False), facts])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _check_options(workers: Any, memory_bytes: Any, objective: Any) -> None:
    is_count = isinstance(workers, int) and not isinstance(workers, bool) and workers >= 1
    if workers is not None and not is_count:
        raise InputError(
            f"`workers` is a number of messages, at least 1; found {workers!r}.",
            code="invalid_option",
        )
    is_size = isinstance(memory_bytes, (int, float)) and not isinstance(memory_bytes, bool)
    if memory_bytes is not None and not (is_size and memory_bytes >= 0):
        raise InputError(
            f"`memory_bytes` is a number of bytes, at least 0; found {memory_bytes!r}.",
            code="invalid_option",
        )
    if objective not in get_args(PlanObjective):
        raise InputError(
            f"`objective` is 'products' or 'time'; found {objective!r}.", code="invalid_option"
        )


def run_steps(
    traced: Traced, pipeline: Pipeline, steps: Sequence[SiteStep], *, workers: int | None = None
) -> Outcome:
    """The value, the auxiliary result and the dense Jacobian of a traced pipeline."""
    value, aux, blocks = run_steps_structured(traced, pipeline, steps, workers=workers)
    return value, aux, as_arrays(blocks)


def run_steps_structured(
    traced: Traced, pipeline: Pipeline, steps: Sequence[SiteStep], *, workers: int | None = None
) -> Outcome:
    """The same with the blocks as they are."""
    return arrange(traced, *execute(pipeline, steps, traced.operands, workers=workers))


def _request(pipeline: Pipeline, step: SiteStep) -> PlannedRequest:
    site, prices = pipeline.sites[step.site], pipeline.network.sites[step.site].prices
    variables = [pipeline.variables[node] for node in step.cut]
    return PlannedRequest(
        site.name,
        step.site,
        str(locate(site.equation) or ""),
        step.way,
        ", ".join(describe_array(var.aval) for var in variables),
        step.products * prices.calls,
        prices.messages(step.way, step.products) * prices.calls,
        step.price,
        prices.source,
        step.memory,
        step.cut,
    )


def _input_types(operands: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(map(describe_array, operands))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
