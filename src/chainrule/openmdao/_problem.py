"""An OpenMDAO problem as a component.

A problem is state: inputs are set, the model runs, and derivatives are those of the last run. Here every
call sets all inputs under a lock, runs the model unless it has just run at these inputs, and begins at the
start values again when a run has failed. So derivatives are never those of another point. Solvers that do
not converge raise, which they do not by themselves.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import openmdao.api as om
from openmdao.utils.graph_utils import get_sccs_topo
from pydantic import Field, create_model

from chainrule._describe import describe_value, did_you_mean
from chainrule._doors import as_identifier
from chainrule._errors import DefinitionError
from chainrule.runtime import Array, Differentiable, LocalComponent, load_component
from chainrule.runtime.internal import known_units

Names = Sequence[str] | Mapping[str, str]
_NO_BOUND = 1e30  # as OpenMDAO writes it


def from_problem(
    make_problem: Callable[[], om.Problem],
    inputs: Names,
    outputs: Names,
    *,
    name: str | None = None,
) -> LocalComponent:
    """A component that runs an OpenMDAO problem, with its total derivatives.

    Args:
        make_problem: makes the problem, and calls its `setup`. Called once.
        inputs: promoted names of the inputs, or `{field: promoted name}`.
        outputs: the same for the outputs.
        name: of the component; that of the function by default.

    Returns:
        A component. Inputs have the values of the problem as defaults, and units and bounds as OpenMDAO
        knows them.

    Raises:
        DefinitionError: the problem has no such variable (`path_unknown`), two have one name, or its linear
            solvers ignore that components depend on each other.

    Example:
        >>> import openmdao.api as om
        >>> import chainrule
        >>> def paraboloid():
        ...     problem = om.Problem()
        ...     system = om.ExecComp("f = (x - 3)**2 + y**2")
        ...     problem.model.add_subsystem("p", system, promotes=["*"])
        ...     problem.setup()
        ...     return problem
        >>> found = chainrule.openmdao.from_problem(paraboloid, ["x", "y"], ["f"])
        >>> print(found.apply({"x": [1.0], "y": [2.0]})["f"])
        [8.]
    """
    program = _Program(make_problem, _fields(inputs, "inputs"), _fields(outputs, "outputs"))
    module = ModuleType(name or re.sub(r"\W", "", make_problem.__name__) or "problem")
    module.__doc__ = (make_problem.__doc__ or "An OpenMDAO problem.").strip()
    vars(module).update(
        InputSchema=program.schema("InputSchema", program.inputs, with_defaults=True),
        OutputSchema=program.schema("OutputSchema", program.outputs, with_defaults=False),
        apply=program.apply,
        jacobian=program.jacobian,
    )
    return load_component(module)


def _fields(names: Names, what: str) -> dict[str, str]:
    """Field → promoted name."""
    if isinstance(names, str):
        raise DefinitionError(
            f"Expected {what} as a list of names; found {names!r}. Write [{names!r}].",
            code="bad_schema",
        )
    if not isinstance(names, Mapping):
        found = [as_identifier(name) for name in names]
        if len(set(found)) < len(found):
            raise DefinitionError(
                f"Expected {what} with names of their own; found {', '.join(names)}. Pass "
                "{field: promoted name}.",
                code="bad_schema",
            )
        names = dict(zip(found, names, strict=True))
    if not names or not all(field.isidentifier() and field[0] != "_" for field in names):
        raise DefinitionError(
            f"Expected {what} with one or more names that are identifiers and begin with a letter; found "
            f"{', '.join(names) or 'none'}. Pass {{field: promoted name}}.",
            code="bad_schema",
        )
    return dict(names)


# OpenMDAO reads what to write, and where, from the environment, which all threads share.
_environment = threading.Lock()


class _Program:
    """A problem that is run and differentiated at given inputs.

    Attributes:
        inputs: field → promoted name.
        outputs: the same.
    """

    def __init__(
        self,
        make_problem: Callable[[], om.Problem],
        inputs: dict[str, str],
        outputs: dict[str, str],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        # A problem holds one point. Setting it, running and differentiating are one step.
        self._lock = threading.Lock()
        self._point: dict[str, bytes] | None = None
        self._problem = _set_up(make_problem)
        _check_cycles(self._problem.model)
        self._start = {
            name: copy.deepcopy(self._problem.get_val(name))  # discrete ones are any object
            for name in self._problem.model.get_io_metadata(iotypes="output")
        }
        self._facts = {n: self._facts_of(n) for n in (*inputs.values(), *outputs.values())}
        for name in inputs.values():
            self._check_input(name)

    def _facts_of(self, name: str) -> Mapping[str, Any]:
        """Shape, units and bounds of a variable; those of an output before those of an input."""
        keys = ("units", "shape", "desc", "lower", "upper")
        for kind in ("output", "input"):
            found = self._problem.model.get_io_metadata(iotypes=kind, metadata_keys=keys)
            for facts in found.values():
                if facts["prom_name"] == name:
                    if facts["discrete"]:
                        raise DefinitionError(
                            f"{name!r} is discrete, and a component of totals has arrays of numbers only. "
                            "Set it in make_problem.",
                            code="path_unknown",
                        )
                    return {**facts, **self._design_bounds(name, facts["units"])}
        known = sorted({f["prom_name"] for f in self._problem.model.get_io_metadata().values()})
        raise DefinitionError(
            f"The problem has no variable {name!r}; it has {', '.join(known[:30])}."
            f"{did_you_mean(name, known)}",
            code="path_unknown",
        )

    def _design_bounds(self, name: str, units: str | None) -> dict[str, Any]:
        """Bounds of a design variable, in the units of the variable.

        Those of a part of it, and scaled ones, which OpenMDAO's versions keep differently, are left out.
        """
        design = self._problem.model.get_design_vars(get_sizes=False, use_prom_ivc=True)
        facts = design.get(name)
        others = ("ref", "ref0", "scaler", "adder", "indices")
        if facts is None or any(facts[key] is not None for key in others):
            return {}
        return {
            key: om.convert_units(facts[key], facts["units"], units)
            for key in ("lower", "upper")
            if facts[key] is not None and np.abs(facts[key]).min() < _NO_BOUND
        }

    def _check_input(self, name: str) -> None:
        """Refuse what the problem computes: a value that is set would be lost, and its derivatives wrong."""
        source = self._problem.model.get_source(name)
        facts = self._problem.model.get_io_metadata(
            iotypes="output", metadata_keys=("tags",), get_remote=True
        )
        if "openmdao:allow_desvar" not in facts[source]["tags"]:
            raise DefinitionError(
                f"{name!r} cannot be an input: the problem computes it, in {source!r}. Pass it in `outputs`.",
                code="path_unknown",
            )

    def schema(self, title: str, names: Mapping[str, str], *, with_defaults: bool) -> Any:
        """A model with one array per variable."""
        fields: dict[str, Any] = {}
        for field, name in names.items():
            facts = self._facts[name]
            value = np.array(self._problem.get_val(name))
            kind = Array.__class_getitem__((value.shape, "float64", known_units(facts["units"])))
            bounds: dict[str, Any] = {
                rule: float(np.min(facts[key]) if rule == "ge" else np.max(facts[key]))
                for rule, key in (("ge", "lower"), ("le", "upper"))
                if facts.get(key) is not None
            }
            default: Any = value if with_defaults else ...
            described = Field(default, description=facts.get("desc") or name, **bounds)
            fields[field] = (Differentiable.__class_getitem__(kind), described)
        return create_model(title, **fields)

    def apply(self, inputs: Any) -> dict[str, np.ndarray]:
        """The outputs."""
        with self._lock:
            self._run(inputs)
            return {f: np.array(self._problem.get_val(name)) for f, name in self.outputs.items()}

    def jacobian(self, inputs: Any, jac_inputs: Any, jac_outputs: Any) -> dict[str, dict[str, Any]]:
        """Total derivatives."""
        wrt = {field: self.inputs[field] for field in jac_inputs}
        of = {field: self.outputs[field] for field in jac_outputs}
        with self._lock:
            self._run(inputs)
            totals = self._problem.compute_totals(
                of=list(of.values()), wrt=list(wrt.values()), return_format="flat_dict"
            )
            shapes = {n: np.shape(self._problem.get_val(n)) for n in (*of.values(), *wrt.values())}
        return {
            o: {
                i: np.array(totals[on, inn]).reshape(shapes[on] + shapes[inn])
                for i, inn in wrt.items()
            }
            for o, on in of.items()
        }

    def _run(self, inputs: Any) -> None:
        """Bring the problem to a point, from the last one or from the start.

        A run that fails may leave values behind from which no solver converges.
        """
        values = {name: np.asarray(getattr(inputs, field)) for field, name in self.inputs.items()}
        # As bytes, in which NaN equals itself and no tolerance takes a near point for this one.
        point = {name: value.tobytes() for name, value in values.items()}
        if point == self._point:
            return
        start = self._start if self._point is None else {}
        # Until the run has ended the problem is at no point: a run that raises begins at the start values
        # next time.
        self._point = None
        for name, value in {**start, **values}.items():
            self._problem.set_val(name, value)
        self._problem.run_model()
        self._point = point


def _set_up(make_problem: Callable[[], om.Problem]) -> om.Problem:
    """The problem, ready to run. It leaves nothing in the working folder: see `_files_elsewhere`."""
    if not callable(make_problem):
        raise DefinitionError(
            f"Expected a function that makes the problem; found {describe_value(make_problem)}. Put the "
            "lines that make it into a function, and pass that.",
            code="bad_definition",
        )
    with _files_elsewhere() as folder:
        problem = make_problem()
        if not isinstance(problem, om.Problem):
            raise DefinitionError(
                f"Expected make_problem to return an openmdao.api.Problem; found "
                f"{type(problem).__name__}.",
                code="bad_definition",
            )
        try:
            problem.final_setup()
        except Exception as error:
            raise DefinitionError(
                f"The problem cannot be set up: {error}. Does make_problem call problem.setup()?",
                code="bad_definition",
            ) from error
    weakref.finalize(problem, shutil.rmtree, folder, ignore_errors=True)
    for system in problem.model.system_iter(include_self=True, recurse=True):
        for solver in (system.nonlinear_solver, system.linear_solver):
            if solver is not None and "err_on_non_converge" in solver.options:
                solver.options["err_on_non_converge"] = True
    return problem


def _check_cycles(group: om.Group) -> None:
    """Refuse components that depend on each other, if their linear solver ignores it.

    OpenMDAO returns wrong total derivatives then, without a word.

    Raises:
        DefinitionError: there are some (`bad_definition`).
    """
    # Both solve for the whole group, as differences do (`approx_totals`), also where its subgroups do not.
    if isinstance(group.linear_solver, (om.DirectSolver, om.ScipyKrylov)) or group._owns_approx_jac:
        return
    if isinstance(group.linear_solver, om.LinearRunOnce):
        for cycle in get_sccs_topo(group.compute_sys_graph()):
            if len(cycle) > 1:
                raise DefinitionError(
                    f"The systems {', '.join(sorted(cycle))} of {group.msginfo} depend on each other, and "
                    "its linear solver runs each of them once, which gives wrong total derivatives. "
                    "Write `group.linear_solver = om.DirectSolver()`.",
                    code="bad_definition",
                )
    for each in group.system_iter(recurse=False, typ=om.Group):
        _check_cycles(each)


@contextlib.contextmanager
def _files_elsewhere() -> Iterator[str]:
    """Problems that are set up meanwhile write no reports, and other files into a folder of their own.

    Such files are the colourings of `ExecComp` and recordings. Where `OPENMDAO_WORKDIR` says a folder, they
    go there.
    """
    folder = tempfile.mkdtemp(prefix="chainrule-openmdao-")
    changes = {"OPENMDAO_REPORTS": "0"}
    changes["OPENMDAO_WORKDIR"] = os.environ.get("OPENMDAO_WORKDIR") or folder
    with _environment:
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
