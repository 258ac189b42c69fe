"""`@component`: a function with annotated arguments becomes a component.

    def solve(mesh: Mesh, load: Array[(3,), Float64], steps: int = 10) -> Array[("n",), Float64]: ...

gives an `InputSchema` with the fields `mesh`, `load`, `steps` and an `OutputSchema`. How the return
annotation becomes fields:

    a pydantic model            is the OutputSchema
    TypedDict, NamedTuple, dataclass    one field per entry
    tuple[A, B]                 result_0, result_1
    anything else               result

A function of one argument that is itself a model takes that model as its InputSchema.

A framework gives derivative endpoints and abstract evaluation for free. The recipes are in
`chainrule.runtime.jax_recipes` and `torch_recipes`; they are imported when a component of that framework is
made.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import (
    Any,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from chainrule._describe import describe_value, names_its_arguments
from chainrule._endpoints import HVP, JACOBIAN, JVP, VALUE_AND_VJP, VJP
from chainrule._errors import ComponentError, DefinitionError, missing_dependency
from chainrule.runtime._component._definition import (
    Batching,
    Definition,
    Implementation,
    derived,
    hash_function,
    is_jitted,
)
from chainrule.runtime._component._derivation import (
    Derivatives,
    finite_implementations,
    sparsity_of,
)
from chainrule.runtime._component._devices import Device, Place, find_place, on_device
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._schema._leaves import is_model_class
from chainrule.runtime._schema._plain import to_plain

Config = ComponentConfig | Mapping[str, Any] | None


@overload
def component(function: Callable[..., Any], /, *, config: Config = None) -> LocalComponent: ...
@overload
def component(
    *,
    framework: Framework | None = None,
    device: Device | None = None,
    keeps_inputs: bool = True,
    derivatives: Derivatives = None,
    batching: Batching | None = None,
    merge_up_to: int = 0,
    prices: Mapping[str, float] | None = None,
    sparsity: Mapping[str, Mapping[str, Any]] | None = None,
    cheap: bool = False,
    plot: Callable[[Any, Any], Any] | None = None,
    name: str | None = None,
    version: str = "unknown",
    config: Config = None,
) -> Callable[[Callable[..., Any]], LocalComponent]: ...
@names_its_arguments
def component(
    function: Callable[..., Any] | None = None,
    /,
    *,
    framework: Framework | None = None,
    device: Device | None = None,
    keeps_inputs: bool = True,
    derivatives: Derivatives = None,
    batching: Batching | None = None,
    merge_up_to: int = 0,
    prices: Mapping[str, float] | None = None,
    sparsity: Mapping[str, Mapping[str, Any]] | None = None,
    cheap: bool = False,
    plot: Callable[[Any, Any], Any] | None = None,
    name: str | None = None,
    version: str = "unknown",
    config: Config = None,
) -> LocalComponent | Callable[[Callable[..., Any]], LocalComponent]:
    """Make a component of a function: schemas from its annotations, prose from its docstring.

    Args:
        function: a function whose arguments and return value are annotated.
        framework: `"jax"` and `"torch"` give every derivative endpoint and abstract evaluation for
            free; `"numpy"` none. Without it, a jitted function counts as JAX, any other as NumPy. `"cupy"`,
            `"warp"` and `"device"` get arrays on a GPU, and none for free.
        device: `"cuda"` for a function that computes on a GPU where there is one, `"cuda-only"` for one that
            refuses to be loaded elsewhere. In a compiled program of JAX on the same GPU it is handed device
            memory; other callers' arrays are moved there and back.
        keeps_inputs: `False` for a function on a GPU that neither keeps nor overwrites the arrays that it
            gets: it is handed those of the program itself, which saves a copy on the device.
        derivatives: `"finite"` to differentiate a black box numerically, or a dictionary of options of
            `finite_difference_jacobian`, where `eps` is `"auto"` unless given. Inputs and outputs to
            differentiate are marked `Differentiable`.
        batching: how the function treats extra leading axes, see `Definition`.
        merge_up_to: how many concurrent single calls a server may merge into one, if it batches.
        prices: what calls cost, in seconds or relative to each other, see `Definition`.
        sparsity: which elements of the outputs depend on which elements of the inputs, see `Definition`.
        cheap: whether the page of a server may run the defaults at once, without a click.
        plot: `plot(inputs, outputs)` with the models of a call returns a figure of matplotlib, Plotly or
            PyVista, HTML, or `{title: figure}`; the page of a server shows it beside its own pictures.
        name: of the component; the function's name by default.
        version: of the component.
        config: settings of this component.

    Returns:
        The component; calling it calls the function as it was written.

    Raises:
        DefinitionError: the annotations do not describe a component, an option of `derivatives` does not
            exist or has a value that cannot be used, or nothing is marked `Differentiable`.

    Example:
        >>> from chainrule.runtime import Array, Differentiable, Float64, component
        >>> @component(derivatives="finite")
        ... def square(x: Differentiable[Array[(2,), Float64]]) -> Differentiable[Array[(2,), Float64]]:
        ...     return x**2
        >>> square.apply({"x": [1.0, 3.0]})
        {'result': array([1., 9.])}
    """

    def make(function: Callable[..., Any]) -> LocalComponent:
        signature = read_signature(function)
        chosen = framework or guess_framework(function)
        place = find_place(chosen, device, keeps_inputs)
        apply, free, jax_function = framework_implementations(chosen, signature, place)
        takes_trees = chosen == "torch"
        implementations = dict(
            on_device({"apply": Implementation(apply), **free}, place, takes_trees=takes_trees)
        )
        apply = implementations["apply"].function
        if derivatives is not None:
            implementations |= finite_implementations(
                apply, derivatives, signature.input_schema, signature.output_schema
            )
        definition = Definition(
            name=name or function.__name__,
            version=version,
            description=summary(inspect.getdoc(function) or ""),
            input_schema=signature.input_schema,
            output_schema=signature.output_schema,
            implementations=implementations,
            function=function,
            content_hash=hash_function(inspect.unwrap(function)),
            jax_function=jax_function,
            jax_derivatives=derivatives is None,
            batching=batching,
            merge_up_to=merge_up_to,
            prices=prices or {},
            sparsity=sparsity or sparsity_of(derivatives),
            cheap=cheap,
            plot=plot,
            place=place,
            framework=chosen,
        )
        return LocalComponent(definition, config)

    return make if function is None else make(function)


_CONFIG = ConfigDict(arbitrary_types_allowed=True)
_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function seen as a program from one tree to another.

    Attributes:
        function: the author's function.
        input_schema: model of its arguments.
        output_schema: model of what it returns.
        takes_model: whether its only argument is the whole input model.
        positional: names of the arguments that can only be given by position.
        to_fields: makes a mapping of the output fields from what the function returns.
    """

    function: Callable[..., Any]
    input_schema: type[BaseModel]
    output_schema: type[BaseModel]
    takes_model: bool
    positional: tuple[str, ...]
    to_fields: Callable[[Any], Any]

    def call_model(self, inputs: BaseModel) -> Any:
        """The output fields for validated inputs."""
        return self.call_fields(inputs.__dict__) if not self.takes_model else self._finish(inputs)

    def call_tree(self, inputs: Mapping[str, Any]) -> Any:
        """The output fields for a plain tree, whose leaves may be anything (traced arrays, tensors)."""
        fields = self.input_schema.model_fields
        revived = {name: _revive(fields[name].annotation, inputs[name]) for name in inputs}
        if self.takes_model:
            return self._finish(self.input_schema.model_construct(**revived))
        return self.call_fields(revived)

    def call_fields(self, fields: Mapping[str, Any]) -> Any:
        """The output fields for the function's arguments by name."""
        positional = [fields[name] for name in self.positional if name in fields]
        named = {name: value for name, value in fields.items() if name not in self.positional}
        return self.to_fields(self.function(*positional, **named))

    def _finish(self, inputs: Any) -> Any:
        return self.to_fields(self.function(inputs))


def read_signature(function: Callable[..., Any]) -> Signature:
    """The schemas that a function's annotations describe.

    Raises:
        DefinitionError: an argument or the return value has no usable annotation (`bad_signature`).
    """
    hints = _type_hints(function)
    parameters = inspect.signature(function).parameters
    documented = _documented_arguments(inspect.getdoc(function) or "")
    fields = {name: _field(name, p, hints, documented) for name, p in parameters.items()}
    (only,) = [f[0] for f in fields.values()] if len(fields) == 1 else (None,)
    takes_model = is_model_class(only)
    input_schema: Any = (
        only if takes_model else create_model("InputSchema", __config__=_CONFIG, **fields)
    )
    if "return" not in hints or hints["return"] is type(None):
        raise _bad(function, "has no return annotation, so its outputs are unknown")
    _check_declared(hints["return"], "The result is")
    output_schema, to_fields = _outputs(hints["return"])
    positional = tuple(n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY)
    return Signature(function, input_schema, output_schema, takes_model, positional, to_fields)


def _type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(inspect.unwrap(function), include_extras=True)
    except DefinitionError as error:  # of an `Array[…]` inside a string
        raise _bad(
            function, f"has an annotation that cannot be used: {error.message[:-1]}"
        ) from error
    except (NameError, TypeError) as error:
        raise _bad(
            function,
            f"has annotations that cannot be resolved ({error}); define the types they name at module "
            "level",
        ) from error


def _field(
    name: str,
    parameter: inspect.Parameter,
    hints: Mapping[str, Any],
    documented: Mapping[str, str],
) -> Any:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise DefinitionError(
            f"The argument {parameter.replace(annotation=parameter.empty)} takes anything; a component "
            "needs named arguments.",
            code="bad_signature",
        )
    if name not in hints:
        raise DefinitionError(
            f"The argument {name!r} has no annotation. Write for example "
            f"`{name}: Array[(3,), Float64]` or `{name}: float`.",
            code="bad_signature",
            path=name,
        )
    _check_declared(hints[name], f"The argument {name!r} is")
    default = ... if parameter.default is parameter.empty else parameter.default
    # Without a description of its own, the field keeps that of `Annotated[…, Field(description=…)]`.
    described: dict[str, Any] = {"description": documented[name]} if name in documented else {}
    return hints[name], Field(default, **described)


def _check_declared(annotation: Any, what: str) -> None:
    """Refuse a class of NumPy, JAX or torch, such as `np.ndarray`: it cannot be described to callers."""
    kind = get_origin(annotation) or annotation
    if isinstance(kind, type) and (
        issubclass(kind, np.ndarray | np.generic)
        or (kind.__module__.partition(".")[0] in ("jax", "torch") and hasattr(kind, "shape"))
    ):
        raise DefinitionError(
            f"{what} declared as {kind.__module__}.{kind.__qualname__}, which does not describe an array to "
            'callers. Write for example `Array[("n",), Float64]`, `Float64` for a number, or '
            "`Array[..., None]` for any array.",
            code="bad_signature",
        )


def _outputs(annotation: Any) -> tuple[type[BaseModel], Callable[[Any], Any]]:
    if is_model_class(annotation):
        return annotation, lambda result: result
    if is_typeddict(annotation):
        return _output_model(get_type_hints(annotation, include_extras=True)), lambda result: result
    if isinstance(annotation, type) and (
        (issubclass(annotation, tuple) and annotation is not tuple)
        or dataclasses.is_dataclass(annotation)
    ):
        hints = get_type_hints(annotation, include_extras=True)
        return _output_model(hints), partial(_fields_of_object, annotation, tuple(hints))
    members = get_args(annotation)
    if get_origin(annotation) is tuple and ... not in members:
        names = tuple(f"result_{i}" for i in range(len(members)))
        return _output_model(dict(zip(names, members, strict=True))), partial(_tuple_fields, names)
    model = _output_model({"result": annotation})
    return model, partial(_one_field, model)


def _output_model(annotations: Mapping[str, Any]) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (annotation, ...) for name, annotation in annotations.items()}
    return create_model("OutputSchema", __config__=_CONFIG, **fields)


def _fields_of_object(kind: type, names: tuple[str, ...], result: Any) -> dict[str, Any]:
    if result is None or not all(hasattr(result, name) for name in names):
        raise _bad_result(f"{kind.__name__}({', '.join(f'{name}=…' for name in names)})", result)
    return {name: getattr(result, name) for name in names}


def _tuple_fields(names: tuple[str, ...], result: Any) -> dict[str, Any]:
    if not isinstance(result, tuple | list) or len(result) != len(names):
        raise _bad_result(f"a tuple of {len(names)} values", result)
    return dict(zip(names, result, strict=True))


def _one_field(model: type[BaseModel], result: Any) -> dict[str, Any]:
    if result is None:
        try:
            model(result=None)
        except ValidationError:
            raise ComponentError(
                "apply returned None. Does its function end with `return`?", code="bad_output"
            ) from None
    return {"result": result}


def _bad_result(expected: str, found: Any) -> ComponentError:
    return ComponentError(
        f"apply returned {describe_value(found)}; its return annotation says {expected}."
        + (" Does the function end with `return`?" if found is None else ""),
        code="bad_output",
    )


def _revive(annotation: Any, value: Any) -> Any:
    """Models where the author's code expects models, without validating the leaves."""
    if not isinstance(value, Mapping | list):
        return value
    if is_model_class(annotation) and isinstance(value, Mapping):
        fields = annotation.model_fields
        parts = {name: _revive(fields[name].annotation, value[name]) for name in value}
        return annotation.model_construct(**parts)
    arguments = get_args(annotation)
    if isinstance(value, list) and len(arguments) == 1:
        return [_revive(arguments[0], item) for item in value]
    if isinstance(value, dict) and len(arguments) == 2:
        return {key: _revive(arguments[1], item) for key, item in value.items()}
    return value


def summary(docstring: str) -> str:
    """A docstring without its sections: what a function is about."""
    return re.split(r"^(?:Args|Arguments|Returns|Raises|Example):$", docstring, flags=re.M)[
        0
    ].strip()


def _documented_arguments(docstring: str) -> dict[str, str]:
    """The entries of a docstring's `Args:` section."""
    lines = iter(docstring.splitlines())
    found: dict[str, str] = {}
    name = None
    for line in lines:
        if line.strip() in ("Args:", "Arguments:"):
            break
    for line in lines:
        if line.strip() and not line.startswith(" "):
            break
        match = _ARGUMENT.match(line)
        if match and not line.startswith(" " * 8):
            name = match[1]
            found[name] = match[2]
        elif name and line.strip():
            found[name] += " " + line.strip()
    return found


def _bad(function: Callable[..., Any], reason: str) -> DefinitionError:
    name = getattr(function, "__name__", repr(function))
    return DefinitionError(f"The function {name} {reason}.", code="bad_signature")


_RECIPES = {
    JACOBIAN.endpoint: "jacobian",
    JVP.endpoint: "jvp",
    VJP.endpoint: "vjp",
    HVP.endpoint: "hessian_vector_product",
    VALUE_AND_VJP.endpoint: "value_and_vjp",
    "abstract_eval": "abstract_eval",
}
# Values are tagged with `sow`, which is of JAX.
_RECIPES_OF = {
    "jax": {**_RECIPES, "tagged_intermediates": "tagged_intermediates"},
    "torch": _RECIPES,
}

Framework = Literal["jax", "torch", "numpy", "cupy", "warp", "device"]


class Free(NamedTuple):
    """`apply` in a framework, the endpoints that come with it, and the traceable function of JAX."""

    apply: Callable[[Any], Any]
    endpoints: dict[str, Implementation]
    jax_function: Callable[[Any], Any] | None


def guess_framework(function: Callable[..., Any]) -> Framework:
    """JAX for a jitted function, NumPy for any other."""
    return "jax" if is_jitted(function) else "numpy"


def framework_implementations(
    framework: Framework, signature: Signature, place: Place | None = None
) -> Free:
    """How a function runs in its framework, and what follows.

    Raises:
        DefinitionError: an unknown framework (`unknown_framework`).
        CapabilityError: the framework is not installed (`missing_dependency`).
    """
    if framework not in get_args(Framework):
        raise DefinitionError(
            f"Unknown framework {framework!r}; use 'jax', 'torch' or 'numpy', or 'cupy', 'warp' or 'device' "
            "on a GPU.",
            code="unknown_framework",
        )
    if framework not in ("jax", "torch"):
        return Free(signature.call_model, {}, None)

    def tree_function(tree: Any) -> Any:
        return _as_tree(signature.call_tree(tree))

    recipes = _recipes(framework)
    program = _jitted(tree_function) if framework == "jax" else tree_function
    apply = partial(getattr(recipes, f"{framework}_apply"), program)
    traceable = tree_function if framework == "jax" else None
    return Free(apply, recipe_implementations(framework, program, place), traceable)


def recipe_implementations(
    framework: Framework, program: Callable[[Any], Any], place: Place | None = None
) -> dict[str, Implementation]:
    """Derivatives and abstract evaluation of a program from nested dicts to nested dicts."""
    recipes = _recipes(framework)
    found = {
        endpoint: derived(partial(getattr(recipes, f"{framework}_{recipe}"), program), framework)
        for endpoint, recipe in _RECIPES_OF[framework].items()
    }
    if place is not None:
        # The weights of a model are on the GPU, and so have to be the tensors that stand for its inputs.
        abstract = partial(recipes.torch_abstract_eval, program, device="cuda")
        found["abstract_eval"] = derived(abstract, framework)
    return found


def _jitted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function compiled once per structure and non-array leaves, for any tree of inputs."""
    import jax

    from chainrule._partition import seal, unseal
    from chainrule.runtime.jax_recipes._programs import split

    @partial(jax.jit, static_argnums=0)
    def run(template: Any, arrays: Any) -> Any:
        return seal(function(template.join(arrays)))

    def call(tree: Any) -> Any:
        return unseal(run(*split(tree)))

    return call


def _recipes(framework: str) -> Any:
    try:
        return importlib.import_module(f"chainrule.runtime.{framework}_recipes")
    except ModuleNotFoundError as error:
        raise missing_dependency(
            f"framework={framework!r} needs", error.name, f"'chainrule[{framework}]'"
        ) from error


def _as_tree(outputs: Any) -> Any:
    return to_plain(outputs) if isinstance(outputs, BaseModel) else outputs
