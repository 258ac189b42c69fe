"""`LocalComponent`: a component in this process.

A component that declares 64 bits computes in 64 bits, also where JAX is set to 32. JAX computes in 32 bits
unless `jax_enable_x64` is set, and says nothing when it narrows a 64-bit array. So x64 is enabled wherever
code of such a component runs. The setting holds for the calling thread and ends with the call:

    while its file runs          `W = jnp.array([0.1])`; only the file that has run says what it declares, so
                                 it may have to run again (`_loading`)
    while it answers a call      `_in_double_precision`
    while a program that computes in 32 bits traces it    not at all: such a program traces the function as
                                 it was loaded in 32 bits (`LocalComponent.trace_in_32_bits_as`)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel

from chainrule._device import own_copy
from chainrule._endpoints import (
    DERIVATIVE_ENDPOINTS,
    ENDPOINTS,
    TAGGED,
    DerivativeKind,
    EndpointMethods,
    endpoint_missing,
)
from chainrule._errors import CapabilityError, ChainruleError, InputError
from chainrule._sparsity import Sparsity
from chainrule.runtime._component._definition import (
    ABSENT,
    Batching,
    Capability,
    Definition,
    Implementation,
)
from chainrule.runtime._component._document import Document
from chainrule.runtime._component._handlers import (
    Handler,
    OutputShapes,
    Payload,
    call_author,
    can_batch,
    check_fields,
    derivative_handler,
    evaluation_handler,
    tagged_handler,
)
from chainrule.runtime._component._plots import documents_of
from chainrule.runtime._component._schemas import (
    Context,
    Schemas,
    complete_abstract,
    with_abstract_eval,
)
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._runs import Run, activate, current_run
from chainrule.runtime._schema import ArraySpec, array_leaves
from chainrule.runtime._schema._plain import to_plain

if TYPE_CHECKING:
    from chainrule.runtime._component._devices import Place


_WIDE = frozenset(("float64", "complex128", "int64", "uint64"))


class LocalComponent(EndpointMethods):
    """A component in this process: typed endpoints around an author's program.

    Made by `load_component`, `@component` or `from_command`. Inputs and results are plain trees: nested
    dicts and lists of NumPy arrays and JSON values. Calls are independent of each other: there is no
    lock around the author's code and no file unless something is logged.

    Copies of it are the component itself. A pickle holds where it is defined (a module and a name, or a
    file) and its settings, as for a function.

    Args:
        definition: what the author gave.
        config: settings of this component, none of which are shared with any other.

    Attributes:
        declares_64_bits: whether an array of its schemas has 64 bits; JAX then computes in 64 bits, too.

    Raises:
        DefinitionError: the definition contradicts itself.
    """

    def __init__(
        self, definition: Definition, config: ComponentConfig | Mapping[str, Any] | None = None
    ) -> None:
        self.config = ComponentConfig.make(config)
        self._definition = definition
        self._jax_function = definition.jax_function
        self._schemas = Schemas(definition.input_schema, definition.output_schema)
        self.declares_64_bits = any(
            spec.dtype in _WIDE
            for schema in (definition.input_schema, definition.output_schema)
            for spec in array_leaves(schema).values()
        )
        self._implementations = implementations = _complete(
            definition.implementations, self._schemas, self.config
        )
        self._handlers: dict[str, Handler] = {
            name: self._make_handler(name) for name in ENDPOINTS if name in implementations
        }
        self.capabilities: Mapping[str, Capability] = {
            name: self._capability(name, implementations.get(name)) for name in ENDPOINTS
        }

    @property
    def name(self) -> str:
        """Name of the component."""
        return self.config.name or self._definition.name

    @property
    def version(self) -> str:
        """Version as the author or the operator counts."""
        return self.config.version or self._definition.version

    @property
    def description(self) -> str:
        """Prose for people."""
        return self.config.description or self._definition.description

    @property
    def framework(self) -> str | None:
        """What the author's functions are written in; `None` when it is not known."""
        return self._definition.framework

    @property
    def content_hash(self) -> str:
        """Hash of the component's code; equal hashes compute equal results."""
        return self._definition.content_hash

    @property
    def input_schema(self) -> type[BaseModel]:
        """The author's model of the inputs."""
        return self._schemas.input_schema

    @property
    def output_schema(self) -> type[BaseModel]:
        """The author's model of the outputs."""
        return self._schemas.output_schema

    @property
    def differentiable_inputs(self) -> Mapping[str, ArraySpec]:
        """Path pattern → declaration of every differentiable input."""
        return self._schemas.differentiable["inputs"]

    @property
    def differentiable_outputs(self) -> Mapping[str, ArraySpec]:
        """Path pattern → declaration of every differentiable output."""
        return self._schemas.differentiable["outputs"]

    @property
    def available_endpoints(self) -> list[str]:
        """Names of the endpoints, native and derived, and `health`."""
        return [*self._handlers, "health"]

    @property
    def jax_function(self) -> Any:
        """The traceable function of nested inputs, for inlining into a JAX program; `None` if none."""
        return self._jax_function

    def trace_in_32_bits_as(self, narrow: LocalComponent) -> None:
        """Let programs that compute in 32 bits trace the same function as loaded in 32 bits.

        The constants of this component's file have 64 bits, and operations of `jax.lax` do not mix the two.
        """
        wide, other = self._jax_function, narrow._jax_function
        if wide is not None and other is not None:
            self._jax_function = lambda inputs: (other if is_narrow() else wide)(inputs)

    @property
    def jax_derivatives(self) -> bool:
        """Whether the derivative endpoints give what JAX makes of `jax_function`."""
        return self._definition.jax_derivatives

    @property
    def batching(self) -> Batching | None:
        """How the author says the component treats extra leading axes."""
        return self._definition.batching

    @property
    def place(self) -> Place | None:
        """The GPU on which the author's functions compute; `None` for the host."""
        return self._definition.place

    @property
    def device(self) -> Literal["cuda", "cpu"]:
        """Where the component computes on this machine."""
        return "cpu" if self.place is None else "cuda"

    @property
    def prices(self) -> Mapping[str, float]:
        """What the author says that calls cost."""
        return self._definition.prices

    @property
    def sparsity(self) -> Sparsity:
        """Which elements of the outputs depend on which elements of the inputs, where that is declared."""
        return self._definition.sparsity

    @property
    def cheap(self) -> bool:
        """Whether a run with the defaults may begin without being asked for."""
        return self._definition.cheap

    @property
    def has_plot(self) -> bool:
        """Whether the author made plots of results."""
        return self._definition.plot is not None

    @property
    def merge_up_to(self) -> int:
        """How many concurrent single calls a server may merge into one; 0 for none."""
        return self._definition.merge_up_to

    @cached_property
    def openapi_schema(self) -> dict[str, Any]:
        """The OpenAPI document of the component."""
        from chainrule.runtime._component._openapi import openapi_document

        return openapi_document(self, self._schemas)

    def output_units(self) -> Mapping[str, str]:
        """Path pattern → units of the outputs that have some."""
        return Document(self.openapi_schema).units("outputs")

    def __repr__(self) -> str:
        try:
            return Document(self.openapi_schema).signature()
        except ChainruleError:  # a schema that cannot be described; serving it says why
            return f"<component {Document.full_name(self.name, self.version)}: {', '.join(self._handlers)}>"

    def _repr_html_(self) -> str:
        return Document(self.openapi_schema).summary_html("in this process")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the author's own function, with nothing in between."""
        return self._definition.function(*args, **kwargs)

    # It cannot be edited, so copies share it, as Python's own do with functions.

    def __copy__(self) -> LocalComponent:
        return self

    def __deepcopy__(self, memo: Any) -> LocalComponent:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from chainrule.runtime._component._loading import reference_to

        return reference_to(self)

    def configured(self, **changes: Any) -> LocalComponent:
        """The same component with other settings."""
        return LocalComponent(self._definition, self.config.replace(**changes))

    def health(self) -> dict[str, str]:
        """`{"status": "ok"}`."""
        return {"status": "ok"}

    def call(
        self,
        endpoint: str,
        payload: Mapping[str, Any],
        *,
        run_id: str | None = None,
        run: Run | None = None,
        copy_inputs: bool = True,
        copy_results: bool = True,
    ) -> Any:
        """Answer a request: validate, run the author's function, validate, return a plain tree.

        The author gets copies of the caller's arrays, and the caller gets copies of the author's.

        Args:
            endpoint: one of `available_endpoints`.
            payload: the whole body of the request, arrays decoded or encoded.
            run_id: as in `apply`.
            run: where files of this call go, instead of a fresh run of that id.
            copy_inputs: `False` for a caller that does not use the arrays of the payload again.
            copy_results: `False` for a caller that copies the result itself before the component is called
                again: until then its arrays may be the author's own.

        Raises:
            CapabilityError: the component does not have this endpoint.
            InputError: the caller is at fault.
            ComponentError: the component is at fault.
        """
        handler = self._handlers.get(endpoint)
        if handler is None:
            return self._without_endpoint(endpoint)
        context = {**self._settings, "dims": {}, "given": not copy_inputs}
        run = run or Run(self.config, run_id=run_id)
        token = current_run.set(run)
        failed = True
        try:
            result = handler(payload, context)
            failed = False
            return own_copy(result) if copy_results else result
        except InputError as error:
            if isinstance(token.old_value, Run):
                error.details["refused_by"] = self.name
            raise
        finally:
            current_run.reset(token)
            run.close(failed=failed)

    def prepare(
        self, endpoint: str, payload: Mapping[str, Any], arrays: Sequence[Any]
    ) -> Callable[[Sequence[Any]], tuple[Any, bool]] | None:
        """Validate a request once, and answer it for other arrays on a GPU of the same types.

        Args:
            endpoint: one of `available_endpoints`.
            payload: as in `call`.
            arrays: those of the payload, all of them on the GPU.

        Returns:
            What takes arrays in the same order and returns what `call` does with `copy_results=False`, and
            whether its types are those of the first result; `None` where something has to be looked at in
            each call: validators of the author, sizes that depend on values, what is to be observed.

        Raises:
            InputError: the request is at fault.
        """
        config, shapes, schemas = self.config, self._output_shapes, self._schemas
        is_observed = config.profiling or config.tracing or config.keep_output
        if self.place is None or is_observed or not schemas.are_known_by_types:
            return None
        if shapes is not None and shapes.asks_apply:
            return None
        from chainrule.runtime._component._prepared import prepare

        function, context = (
            self._implementations[endpoint].function,
            {**self._context, "own": False},
        )
        with activate(Run(config)):
            prepared = prepare(endpoint, schemas, shapes, function, payload, context, arrays)
        if prepared is None:
            return None

        def call(others: Sequence[Any]) -> tuple[Any, bool]:
            precision = double_precision() if self.declares_64_bits else nullcontext()
            with activate(Run(config)), precision:
                return prepared(others)

        return call

    def plot(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *, run: Run | None = None
    ) -> dict[str, str]:
        """The author's plots of a result, as title → HTML. Its scripts are the author's; frame them.

        Args:
            inputs: as in `apply`.
            outputs: what `apply` returned for them.
            run: where files of this call go.

        Raises:
            CapabilityError: the author made no plots.
            InputError: the inputs or outputs do not fit the schemas.
            ComponentError: the author's function failed, or returned something else.
        """
        function = self._definition.plot
        if function is None:
            raise CapabilityError(
                f"{self.name} has no plots. Define `plot(inputs, outputs)` in its module, or pass "
                "`plot=` to `@component`.",
                code="endpoint_missing",
            )
        with activate(run or Run(self.config)):
            return documents_of(
                call_author(
                    function,
                    "plot",
                    self._schemas.read_inputs(inputs, "plot", self._context),
                    self._schemas.read_given_outputs(outputs, "plot", self._context),
                )
            )

    def read_inputs(self, payload: Mapping[str, Any]) -> Any:
        """The inputs of a request for `apply` as a plain tree with arrays, validated; nothing is computed.

        Raises:
            InputError: the caller is at fault.
        """
        check_fields(payload, ("inputs",), "apply")
        return to_plain(self.read_model(payload["inputs"], "apply"))

    def read_model(
        self, inputs: Any, endpoint: str, *, own: bool = True, bounded: bool = True
    ) -> BaseModel:
        """The inputs as the model that the function of an endpoint gets.

        Args:
            inputs: as in `apply`.
            endpoint: for messages.
            own: copy arrays; otherwise the model may hold those of the caller.
            bounded: hold arrays to the bounds of their fields.

        Raises:
            InputError: the caller is at fault.
        """
        context = {**self._context, "own": own, "unbounded": not bounded}
        return self._schemas.read_inputs(inputs, endpoint, context)

    def function_of(self, endpoint: str) -> Callable[..., Any]:
        """The function behind an endpoint, of the author or of a recipe; it takes a model."""
        return self._implementations[endpoint].function

    def read_abstract_inputs(self, abstract_inputs: Any) -> tuple[Any, dict[str, Any]]:
        """The inputs of `abstract_eval` as a plain tree, validated, and the sizes of named dimensions.

        Arrays are `{"shape": …, "dtype": …}`. Arrays that are not given have the values of their defaults.

        Raises:
            InputError: the caller is at fault.
        """
        return complete_abstract(self._schemas, abstract_inputs)

    @property
    def _context(self) -> Context:
        """What the validators of one request know."""
        return {**self._settings, "dims": {}}

    @cached_property
    def _settings(self) -> Context:
        """The part of it that is the same for every request."""
        return {"grants": self.config.grants, "limits": self.config.limits, "own": True}

    def _make_handler(self, name: str) -> Handler:
        function, kind = self._implementations[name].function, ENDPOINTS[name]
        schemas, shapes, config = self._schemas, self._output_shapes, self.config
        if isinstance(kind, DerivativeKind):
            assert shapes is not None
            handler = derivative_handler(kind, schemas, function, shapes)
        elif kind is TAGGED:
            handler = tagged_handler(schemas, function)
        else:
            is_learning = name == "apply" and shapes is not None and shapes.asks_apply
            author = self._definition.function if name == "apply" else None
            handler = evaluation_handler(
                name, schemas, function, shapes if is_learning else None, author=author
            )
        if config.profiling or config.tracing or config.keep_output:
            # Imported here: most components are not observed.
            from chainrule.runtime._component._observation import observed

            handler = observed(name, handler, config)
        return _in_double_precision(handler) if self.declares_64_bits else handler

    @cached_property
    def _output_shapes(self) -> OutputShapes | None:
        """The shapes that derivatives are held to; `None` for a component that has none."""
        found = self._implementations
        derivatives = [found[name] for name in DERIVATIVE_ENDPOINTS if name in found]
        if not derivatives:
            return None
        # A recipe holds vectors to their shapes by itself; its abstract evaluation is not native. Without a
        # derivative of the author's all of them are recipes.
        abstract = found.get("abstract_eval")
        is_native = abstract is not None and abstract.capability.status == "native"
        has_own = any(each.capability.status == "native" for each in derivatives)
        return OutputShapes(
            self._schemas,
            abstract.function if abstract and is_native else None,
            found["apply"].function if has_own else None,
        )

    def _capability(self, name: str, implementation: Implementation | None) -> Capability:
        if implementation is None:
            return ABSENT
        batches = can_batch(ENDPOINTS[name], implementation.function)
        return replace(implementation.capability, batches=batches)

    def _derivative_hint(self, endpoint: str) -> str:
        """What an author does to have a derivative endpoint."""
        if endpoint not in DERIVATIVE_ENDPOINTS:
            return ""
        for side in ("inputs", "outputs"):
            if not self._schemas.differentiable[side]:
                return (
                    f" None of its {side} is marked Differentiable: write for example "
                    "`x: Differentiable[Float64]` in the schema."
                )
        if "vector_jacobian_product" in self._handlers:
            return ""
        return (
            " Its author can define vector_jacobian_product, jacobian_vector_product or jacobian, or "
            'take differences: `@component(derivatives="finite")`.'
        )

    def _without_endpoint(self, endpoint: str) -> Any:
        if endpoint == "health":
            return self.health()
        raise endpoint_missing(
            self.name, endpoint, self.available_endpoints, self._derivative_hint(endpoint)
        )


def _complete(
    given: Mapping[str, Implementation], schemas: Schemas, config: ComponentConfig
) -> Mapping[str, Implementation]:
    if not any(name in given for name in DERIVATIVE_ENDPOINTS):
        return with_abstract_eval(given, schemas)
    from chainrule.runtime._component._derivation import with_derivatives
    from chainrule.runtime._residuals import handing_on_residuals

    handing_on = handing_on_residuals(
        given, max_bytes=config.max_residual_bytes, folder=config.residual_folder
    )
    completed = with_derivatives(handing_on, schemas, derive_hvp=config.derive_hvp)
    return with_abstract_eval(completed, schemas)


def is_narrow() -> bool:
    """Whether JAX is there and computes in 32 bits."""
    jax = sys.modules.get("jax")
    return jax is not None and not jax.config.jax_enable_x64


def double_precision() -> AbstractContextManager[Any]:
    """Let JAX compute in 64 bits, in this thread; without JAX there is nothing to do."""
    if not is_narrow():
        return nullcontext()
    # Imported here: most components do without JAX.
    from chainrule._jaxpr import enable_x64

    return enable_x64(True)


def _in_double_precision(handler: Handler) -> Handler:
    def handle(payload: Payload, context: Context) -> Any:
        if "jax" not in sys.modules:
            # Copies of the inputs, which the author may overwrite: they may be needed a second time.
            result = handler(payload, {**context, "given": False})
            if not is_narrow():
                return result
            # The author's function has just imported JAX, and what it computed then has 32 bits: once more.
        with double_precision():
            return handler(payload, context)

    return handle
