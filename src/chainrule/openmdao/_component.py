"""A component as a component of OpenMDAO.

Every differentiable leaf is a variable, named after its path (`wings.[0].chord` is `wings_0_chord`; an output
that is called like an input gets the ending `_out`), with the units of the schema and the shape that it has
in the example. Everything else stays as in the example. OpenMDAO's word for a point at which a model cannot
be evaluated is `AnalysisError`: inputs that the schema refuses raise it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import openmdao.api as om
from openmdao.utils.units import valid_units

from chainrule._codec import flat_entries
from chainrule._doors import asking_for_example, distinct_identifiers, real_leaves
from chainrule._endpoints import JACOBIAN, JVP, VJP
from chainrule._errors import CapabilityError, ComponentError, InputError
from chainrule._trees import get_at_path, set_at_path
from chainrule.runtime import SparseArray
from chainrule.runtime.internal import Document, Leaf, complete_inputs

Partials = Literal["dense", "sparse", "products"]


def component(
    component: Any,
    example: Mapping[str, Any] | None = None,
    *,
    partials: Partials = "dense",
    states: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> om.ExplicitComponent | om.ImplicitComponent:
    """A component for a model of OpenMDAO.

    Args:
        component: a component of Chainrule, in this process or behind a handle.
        example: inputs that say the shapes of open dimensions and the values of everything that does not
            vary; defaults of the schema need not be given.
        partials: `"dense"` asks for the Jacobian; `"sparse"` declares the rows and columns that it has in the
            example, for components with sparse Jacobians; `"products"` never builds it.
        states: for an implicit component, which input is the state of which residual: `{"y": "residual"}`.
        units: path → units in OpenMDAO's spelling, where the schema's is another.

    Returns:
        A component to add to a group. Its attribute `paths` maps the names of variables to paths.

    Raises:
        InputError: the example does not fit, units are unknown to OpenMDAO (`unit_unknown`) or those of
            no path (`path_unknown`), a state or residual does not exist or differs in shape (`bad_states`).
        CapabilityError: the component has no derivatives.

    Example:
        >>> import openmdao.api as om
        >>> import chainrule
        >>> from chainrule.runtime import Differentiable, Float64
        >>> @chainrule.component(derivatives="finite")
        ... def square(x: Differentiable[Float64]) -> Differentiable[Float64]:
        ...     return x**2
        >>> problem = om.Problem(reports=False)
        >>> _ = problem.model.add_subsystem("s", chainrule.openmdao.component(square, {"x": 1.0}))
        >>> problem.setup()
        >>> problem.set_val("s.x", 3.0)
        >>> problem.run_model()
        >>> print(problem.get_val("s.result").item())
        9.0
    """
    bridge = _Bridge(component, example, partials, dict(units or {}))
    if states is not None:
        kind = _ImplicitProducts if partials == "products" else _Implicit
        return kind(bridge, bridge.pair_states(states))
    return (_Products if partials == "products" else _Explicit)(bridge)


class _Bridge:
    """What the components of OpenMDAO share: names, shapes, and calls.

    Attributes:
        inputs: name → leaf of every input.
        outputs: the same for the outputs.
    """

    def __init__(
        self,
        component: Any,
        example: Mapping[str, Any] | None,
        partials: str,
        units: dict[str, str],
    ) -> None:
        if partials not in ("dense", "sparse", "products"):
            raise InputError(
                f"Expected partials='dense', 'sparse' or 'products'; found {partials!r}.",
                code="bad_option",
            )
        self._component = component
        self._units = units
        self._places: dict[tuple[str, str], np.ndarray] = {}
        self.partials = partials
        needed = (JVP.endpoint, VJP.endpoint) if partials == "products" else (JACOBIAN.endpoint,)
        for endpoint in needed:
            if endpoint not in component.available_endpoints:
                raise CapabilityError(
                    f"{component.name} has no {endpoint}, which OpenMDAO needs here. Give it derivatives, "
                    'for example by derivatives="finite".',
                    code="endpoint_missing",
                )
        with asking_for_example(component, example):
            self._tree = complete_inputs(component, example or {})
            self._outputs_at_example = component.apply(self._tree)
        document = Document(component.openapi_schema)
        self.inputs = _named(document.leaves("inputs", self._tree))
        self.outputs = _named(document.leaves("outputs", self._outputs_at_example), self.inputs)
        known = [leaf.path for leaf in (*self.inputs.values(), *self.outputs.values())]
        for path in units:
            if path not in known:
                raise InputError(
                    f"Expected units of {', '.join(known)}; found {path!r}.",
                    code="path_unknown",
                    path=path,
                )

    @property
    def name(self) -> str:
        """Of the component."""
        return str(self._component.name)

    def value(self, leaf: Leaf) -> Any:
        """An input in the example."""
        return np.asarray(get_at_path(self._tree, leaf.path), float)

    def output_value(self, leaf: Leaf) -> Any:
        """An output at the example."""
        return np.asarray(get_at_path(self._outputs_at_example, leaf.path), float)

    def units(self, leaf: Leaf) -> str | None:
        """The units of a leaf as OpenMDAO writes them."""
        units = self._units.get(leaf.path, leaf.units)
        if units is not None and not valid_units(units):
            raise InputError(
                f"OpenMDAO does not know the units {units!r} of {leaf.path}; pass its own spelling: "
                f"units={{{leaf.path!r}: …}}.",
                code="unit_unknown",
                path=leaf.path,
            )
        return units

    def tree(self, *vectors: Any) -> Any:
        """The component's inputs at values of OpenMDAO's variables."""
        values = {
            leaf.path: np.reshape(vector[name], leaf.shape).astype(leaf.dtype, copy=False)
            for vector in vectors
            for name, leaf in self.inputs.items()
            if name in vector
        }
        return set_at_path(self._tree, values)

    def apply_tree(self, tree: Any) -> Any:
        """The outputs; a point that the schema refuses is OpenMDAO's `AnalysisError`."""
        try:
            return self._component.apply(tree)
        except InputError as error:
            raise om.AnalysisError(f"{self._component.name} refuses this point: {error}") from error

    def apply(self, *vectors: Any) -> dict[str, np.ndarray]:
        """The outputs by name."""
        found = self.apply_tree(self.tree(*vectors))
        return {
            name: np.asarray(get_at_path(found, leaf.path)) for name, leaf in self.outputs.items()
        }

    def jacobian(self, tree: Any) -> dict[tuple[str, str], Any]:
        """(output name, input name) → block, dense or sparse."""
        found = self._component.jacobian(
            tree,
            [leaf.path for leaf in self.inputs.values()],
            [leaf.path for leaf in self.outputs.values()],
        )
        return {
            (of, wrt): found[o.path][i.path]
            for of, o in self.outputs.items()
            for wrt, i in self.inputs.items()
        }

    def push(self, tree: Any, tangents: Mapping[str, Any], of: Sequence[str]) -> dict[str, Any]:
        """J · tangents for some outputs, by name."""
        vector = {
            self.inputs[n].path: np.reshape(t, self.inputs[n].shape) for n, t in tangents.items()
        }
        paths = [self.outputs[name].path for name in of]
        found = self._component.jacobian_vector_product(tree, list(vector), paths, vector)
        return {name: found[self.outputs[name].path] for name in of}

    def pull(self, tree: Any, cotangents: Mapping[str, Any], wrt: Sequence[str]) -> dict[str, Any]:
        """Jᵀ · cotangents for some inputs, by name."""
        vector = {
            self.outputs[n].path: np.reshape(u, self.outputs[n].shape)
            for n, u in cotangents.items()
        }
        paths = [self.inputs[name].path for name in wrt]
        found = self._component.vector_jacobian_product(tree, paths, list(vector), vector)
        return {name: found[self.inputs[name].path] for name in wrt}

    def add_products(
        self, tree: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any], mode: str
    ) -> None:
        """Add J · inputs to the outputs (mode `fwd`), or Jᵀ · outputs to the inputs, by name and in place."""
        if not inputs or not outputs:
            return
        if mode == "fwd":
            found, into = self.push(tree, inputs, list(outputs)), outputs
        else:
            found, into = self.pull(tree, outputs, list(inputs)), inputs
        # Added, as OpenMDAO demands: several products may go into one vector.
        for name, vector in into.items():
            vector += np.reshape(found[name], np.shape(vector))

    def pair_states(self, states: Mapping[str, str]) -> dict[str, str]:
        """Name of a state → name of its residual."""
        inputs, outputs = (
            {leaf.path: name for name, leaf in side.items()} for side in (self.inputs, self.outputs)
        )
        pairs = {}
        for state, residual in states.items():
            s, r = inputs.get(state), outputs.get(residual)
            if s is None or r is None:
                raise InputError(
                    f"Expected states as {{input: residual}} of {list(inputs)} and "
                    f"{list(outputs)}; found {state!r}: {residual!r}.",
                    code="bad_states",
                )
            if self.inputs[s].size != self.outputs[r].size:
                raise InputError(
                    f"The state {state} has {self.inputs[s].size} elements, and its residual {residual} "
                    f"{self.outputs[r].size}.",
                    code="bad_states",
                    path=state,
                )
            pairs[s] = r
        return pairs

    def declare(self, owner: Any, of: str, wrt: str, block: Any) -> None:
        """Declare one partial derivative."""
        if self.partials == "sparse" and isinstance(block, SparseArray):
            places, _ = flat_entries(block)
            rows, cols = np.divmod(places, max(1, self.inputs[wrt].size))
            self._places[of, wrt] = places
            owner.declare_partials(of, wrt, rows=rows, cols=cols)
        else:
            owner.declare_partials(of, wrt)

    def fill(self, partials: Any, of: str, wrt: str, block: Any) -> None:
        """Hand one block over in the form in which it was declared."""
        if (of, wrt) not in self._places:
            dense = block.todense() if isinstance(block, SparseArray) else np.asarray(block)
            partials[of, wrt] = dense.reshape(-1, self.inputs[wrt].size)
            return
        places, values = flat_entries(block)
        if not np.array_equal(places, self._places[of, wrt]):
            raise ComponentError(
                f"The Jacobian of {of} by {wrt} has other non-zero entries than in the example. Use "
                "partials='dense' or 'products'.",
                code="bad_output",
            )
        partials[of, wrt] = values


def _named(leaves: Sequence[Leaf], taken: Collection[str] = ()) -> dict[str, Leaf]:
    """Leaves under names that OpenMDAO allows; an output that is called like an input gets `_out`."""
    leaves = real_leaves(leaves, "OpenMDAO")
    names = distinct_identifiers([leaf.path for leaf in leaves], "OpenMDAO")
    names = [f"{name}_out" if name in taken else name for name in names]
    if len({*names, *taken}) < len(names) + len(taken):
        raise InputError(
            "Outputs that are called like inputs get the ending _out in OpenMDAO, and then two of "
            f"{', '.join([*taken, *names])} are the same. Rename a field.",
            code="bad_schema",
        )
    return dict(zip(names, leaves, strict=True))


class _Shared:
    """The part that explicit and implicit components have in common."""

    bridge: _Bridge

    @property
    def paths(self) -> dict[str, str]:
        """Name of every variable → its path in the component."""
        both = (*self.bridge.inputs.items(), *self.bridge.outputs.items())
        return {name: leaf.path for name, leaf in both}


class _Explicit(_Shared, om.ExplicitComponent):
    """A component with its Jacobian."""

    def __init__(self, bridge: _Bridge) -> None:
        super().__init__()
        self.bridge = bridge

    def setup(self) -> None:
        """Add a variable for every leaf."""
        bridge = self.bridge
        for name, leaf in bridge.inputs.items():
            self.add_input(name, val=bridge.value(leaf), units=bridge.units(leaf), desc=leaf.path)
        for name, leaf in bridge.outputs.items():
            self.add_output(
                name, val=bridge.output_value(leaf), units=bridge.units(leaf), desc=leaf.path
            )

    def setup_partials(self) -> None:
        """Declare the Jacobian, and where it is not zero."""
        at_example = (
            self.bridge.jacobian(self.bridge.tree()) if self.bridge.partials == "sparse" else {}
        )
        for of in self.bridge.outputs:
            for wrt in self.bridge.inputs:
                self.bridge.declare(self, of, wrt, at_example.get((of, wrt)))

    def compute(self, inputs: Any, outputs: Any) -> None:
        """The outputs."""
        if self.under_complex_step:
            raise InputError(
                f"{self.bridge.name} takes real numbers, and OpenMDAO makes a complex step (method='cs'). "
                "Take its own derivatives, or method='fd'.",
                code="bad_option",
            )
        for name, value in self.bridge.apply(inputs).items():
            outputs[name] = value

    def compute_partials(self, inputs: Any, partials: Any) -> None:
        """The Jacobian."""
        for (of, wrt), block in self.bridge.jacobian(self.bridge.tree(inputs)).items():
            self.bridge.fill(partials, of, wrt, block)


class _Products(_Explicit):
    """A component with products only."""

    def setup_partials(self) -> None:
        """Products need no declaration."""

    def compute_partials(self, inputs: Any, partials: Any) -> None:
        """There is no matrix."""

    def compute_jacvec_product(self, inputs: Any, d_inputs: Any, d_outputs: Any, mode: str) -> None:
        """Products with the Jacobian or its transpose."""
        bridge = self.bridge
        knowns = {name: d_inputs[name] for name in bridge.inputs if name in d_inputs}
        unknowns = {name: d_outputs[name] for name in bridge.outputs if name in d_outputs}
        bridge.add_products(bridge.tree(inputs), knowns, unknowns, mode)


class _Implicit(_Shared, om.ImplicitComponent):
    """A component of residuals: its states are outputs that a solver of OpenMDAO finds."""

    def __init__(self, bridge: _Bridge, residual_of: dict[str, str]) -> None:
        super().__init__()
        self.bridge = bridge
        self._residual_of = residual_of

    def setup(self) -> None:
        """States are outputs, everything else is an input."""
        bridge = self.bridge
        for name, leaf in bridge.inputs.items():
            add = self.add_output if name in self._residual_of else self.add_input
            add(name, val=bridge.value(leaf), units=bridge.units(leaf), desc=leaf.path)

    def setup_partials(self) -> None:
        """Declare the derivatives of residuals by states and inputs."""
        at_example = (
            self.bridge.jacobian(self.bridge.tree()) if self.bridge.partials == "sparse" else {}
        )
        for state, residual in self._residual_of.items():
            for wrt in self.bridge.inputs:
                self.bridge.declare(self, state, wrt, at_example.get((residual, wrt)))

    def apply_nonlinear(self, inputs: Any, outputs: Any, residuals: Any) -> None:
        """The residuals."""
        found = self.bridge.apply(inputs, outputs)
        for state, residual in self._residual_of.items():
            residuals[state] = found[residual].reshape(residuals[state].shape)

    def linearize(self, inputs: Any, outputs: Any, jacobian: Any) -> None:
        """Their derivatives."""
        blocks = self.bridge.jacobian(self.bridge.tree(inputs, outputs))
        for state, residual in self._residual_of.items():
            for wrt in self.bridge.inputs:
                self.bridge.fill(jacobian, state, wrt, blocks[residual, wrt])


class _ImplicitProducts(_Implicit):
    """A component of residuals with products only."""

    def setup_partials(self) -> None:
        """Products need no declaration."""

    def linearize(self, inputs: Any, outputs: Any, jacobian: Any) -> None:
        """There is no matrix."""

    def apply_linear(
        self, inputs: Any, outputs: Any, d_inputs: Any, d_outputs: Any, d_residuals: Any, mode: str
    ) -> None:
        """Products with the derivatives of residuals by states and inputs, or their transposes."""
        # The residual r(x, y) of states y and inputs x: dr = ∂r/∂x dx + ∂r/∂y dy. Residuals have the names of
        # their states in OpenMDAO.
        bridge = self.bridge
        knowns = {
            name: vector[name]
            for vector in (d_inputs, d_outputs)
            for name in bridge.inputs
            if name in vector
        }
        unknowns = {
            residual: d_residuals[state].reshape(bridge.outputs[residual].shape)
            for state, residual in self._residual_of.items()
            if state in d_residuals
        }
        bridge.add_products(bridge.tree(inputs, outputs), knowns, unknowns, mode)
