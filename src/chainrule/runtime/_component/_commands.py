"""Components from executables in any language.

For every call the payload is written to a file, the command is run, and its result is read back. The files
are in a temporary folder that is removed after the call, also when the call fails. A file `component.yaml`
says the same as the arguments of `from_command`:

    name: heat
    command: [./solve, "{input}", "{output}"]
    inputs: {temperature: "differentiable float64[n]", dt: float}
    outputs: {temperature: "differentiable float64[n]"}
    derivatives: finite

How schemas are declared (`declared_model`):

    x: differentiable float64[n, 3]       an array; a size is a number, a name or `?`; `float64` is a scalar
    mode: str                             str, int, float, bool
    label: str?                           may be null
    steps: {type: int, default: 10, description: "time steps"}
    speed: {type: "float64[3]", units: m/s}
    mesh: {points: "float64[n, 3]", cells: "int64[m, 4]"}       a nested object
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field, create_model

from chainrule._codec import Limits
from chainrule._content_store import hash_parts
from chainrule._endpoints import ENDPOINTS
from chainrule._errors import ComponentError, DefinitionError, LimitError
from chainrule._paths import split_path
from chainrule._trees import flatten_with_paths, is_arraylike
from chainrule.runtime._component._decks import STANDARD_INPUT, STANDARD_OUTPUT, Decks
from chainrule.runtime._component._definition import Definition, Implementation
from chainrule.runtime._component._derivation import Derivatives, finite_implementations
from chainrule.runtime._component._loading import read_mapping
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._runs import get_config
from chainrule.runtime._schema import ArraySpec, array_leaves, array_type
from chainrule.runtime._schema._leaves import is_model_class
from chainrule.runtime._schema._plain import to_plain
from chainrule.runtime._schema._spec import make_spec

_log = logging.getLogger(__name__)
_STDERR_SHOWN = 2000


def from_command(
    command: Sequence[str],
    *,
    inputs: type[BaseModel] | Mapping[str, Any],
    outputs: type[BaseModel] | Mapping[str, Any],
    name: str | None = None,
    version: str = "unknown",
    description: str = "",
    format: Format = "json",
    endpoints: Mapping[str, Sequence[str]] | None = None,
    derivatives: Derivatives = None,
    templates: Mapping[str, str] | None = None,
    results: Mapping[str, Any] | None = None,
    folder: str | Path = ".",
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    config: ComponentConfig | Mapping[str, Any] | None = None,
) -> LocalComponent:
    """Make a component of any executable.

    The command's arguments may contain `{input}` and `{output}` (files that are made for the call),
    `{endpoint}` and `{folder}`. Without `{input}` the payload is given on standard input, without
    `{output}` the result is read from standard output. No shell is involved.

    Args:
        command: the executable and its arguments, for `apply`. It gets the inputs and gives the outputs.
        inputs: a pydantic model, or a declaration such as `{"x": "float64[n]"}`.
        outputs: the same for the outputs.
        name: of the component; the executable's name by default.
        version: of the component.
        description: prose for people.
        format: `"json"` (arrays as nested lists) or `"npz"` (arrays under their paths, exact; other
            values as JSON text in the entry `_json`).
        endpoints: commands for derivative endpoints; each gets the whole payload of its endpoint.
        derivatives: `"finite"` to differentiate the command numerically.
        templates: text files that `apply` writes before it runs the command: name → text with `{path}` or
            `{path:format}` where an input belongs. The command then runs in a folder of its own, where these
            files are.
        results: output → the file in which its numbers are, or a pair of the file and a pattern (a regular
            expression) that finds them; the file `stdout` is what the command prints.
        folder: where the command runs; `{folder}` in its arguments is this folder, as an absolute path.
        environment: variables added to the environment of the command.
        timeout_s: how long one run may take.
        config: settings of this component.

    Raises:
        DefinitionError: no such executable (`command_missing`), or schemas that cannot be read.
    """
    schemas = declared_model("InputSchema", inputs), declared_model("OutputSchema", outputs)
    decks = Decks.read(templates, results, *schemas)
    program = _Program(
        Path(folder).resolve(),
        format,
        dict(environment or {}),
        timeout_s,
        decks,
        array_leaves(schemas[1]),
    )
    commands = {"apply": tuple(command), **{k: tuple(v) for k, v in (endpoints or {}).items()}}
    for endpoint, arguments in commands.items():
        if endpoint not in ENDPOINTS:
            raise DefinitionError(
                f"Unknown endpoint {endpoint!r}; there are {', '.join(ENDPOINTS)}.",
                code="bad_endpoint",
            )
        program.check(arguments)
    functions = {name: _endpoint_function(program, name, c) for name, c in commands.items()}
    implementations = {name: Implementation(f) for name, f in functions.items()}
    if derivatives is not None:
        finite = finite_implementations(functions["apply"], derivatives, *schemas)
        implementations = finite | implementations
    definition = Definition(
        name=name or Path(command[0]).stem,
        version=version,
        description=description,
        input_schema=schemas[0],
        output_schema=schemas[1],
        implementations=implementations,
        function=functions["apply"],
        content_hash=_hash_commands(program, commands, schemas),
        framework="command",
    )
    return LocalComponent(definition, config)


def _endpoint_function(
    program: _Program, endpoint: str, command: tuple[str, ...]
) -> Callable[..., Any]:
    if endpoint in ("apply", "abstract_eval"):
        return lambda inputs: program.run(command, endpoint, to_plain(inputs))
    return lambda **payload: program.run(command, endpoint, to_plain(payload))


def _hash_commands(
    program: _Program, commands: Mapping[str, tuple[str, ...]], schemas: Iterable[type[BaseModel]]
) -> str:
    fields = [item for schema in schemas for item in schema.model_fields.items()]
    declared = "\n".join(f"{name}: {field.annotation!r}" for name, field in fields)
    parts = [("schemas", declared.encode()), ("decks", repr(program.decks).encode())]
    for endpoint, command in sorted(commands.items()):
        parts.append((endpoint, "\0".join(command).encode()))
        for argument in command:
            file = program.folder / program.placed(argument)
            if file.is_file():
                parts.append((argument, file.read_bytes()))
    return hash_parts(parts)


@dataclass(frozen=True)
class _Program:
    """How commands of one component are run."""

    folder: Path
    format: Format
    environment: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    decks: Decks = field(default_factory=Decks)
    arrays: Mapping[str, ArraySpec] = field(default_factory=dict)

    def check(self, command: tuple[str, ...]) -> None:
        """Refuse a command whose executable does not exist."""
        name = self.placed(command[0]) if command else ""
        is_path = os.sep in name
        is_here = bool(name) and not is_path and (self.folder / name).is_file()
        if not ((self.folder / name).is_file() if is_path else name and shutil.which(name)):
            raise DefinitionError(
                f"There is no executable {name!r} "
                + (f"in {self.folder}." if is_path else "on the PATH.")
                + (f" To run the file in {self.folder}, write './{name}'." if is_here else ""),
                code="command_missing",
            )

    def placed(self, argument: str) -> str:
        """An argument with the folder of the program in it."""
        return _fill(argument, {"folder": str(self.folder)})

    def run(self, command: tuple[str, ...], endpoint: str, payload: Any) -> Any:
        """Write the payload, run the command, read its result."""
        with tempfile.TemporaryDirectory(prefix="chainrule-") as scratch:
            source, target = (Path(scratch) / f"{n}.{self.format}" for n in ("input", "output"))
            write_payload(source, payload, self.format)
            has_decks = endpoint == "apply" and bool(self.decks.templates or self.decks.results)
            places = {"input": str(source), "output": str(target), "endpoint": endpoint}
            arguments = [_fill(self.placed(argument), places) for argument in command]
            if has_decks:
                return self._run_with_decks(arguments, source, target, Path(scratch), payload)
            is_piped = "{output}" not in "".join(command)
            self._execute(arguments, source, target if is_piped else None, Path(scratch))
            return self._result(command[0], target)

    def _result(self, name: str, target: Path) -> Any:
        if not target.is_file():
            raise ComponentError(
                f"{name} finished but wrote no result to {{output}}.", code="command_no_output"
            )
        return read_result(target, self.format, get_config().limits)

    def _run_with_decks(
        self, arguments: list[str], source: Path, target: Path, scratch: Path, inputs: Any
    ) -> Any:
        """In a folder of its own, in which the files of the templates are."""
        place = scratch / "run"
        place.mkdir()
        self.decks.write(place, inputs)
        if os.sep in arguments[0]:
            arguments[0] = str(self.folder / arguments[0])
        printed = place / STANDARD_OUTPUT
        read = place / STANDARD_INPUT if STANDARD_INPUT in self.decks.templates else source
        self._execute(arguments, read, printed, scratch, cwd=place)
        if self.decks.results:
            return self.decks.find(place, self.arrays)
        return self._result(arguments[0], target if target.is_file() else printed)

    def _execute(
        self,
        arguments: list[str],
        source: Path,
        piped: Path | None,
        scratch: Path,
        cwd: Path | None = None,
    ) -> None:
        errors = scratch / "stderr"
        output = piped or scratch / "stdout"
        with source.open("rb") as given, output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                arguments,
                cwd=cwd or self.folder,
                env={**os.environ, **self.environment},
                stdin=given,
                stdout=out,
                stderr=err,
                # A group of its own: what the command has started itself (a shell script's programs) is ended
                # with it.
                start_new_session=True,
            )
            status = self._wait(process, arguments[0])
        complaint = _tail(errors)
        if status != 0:
            raise ComponentError(
                f"{Path(arguments[0]).name} failed with exit code {status}"
                + (f": {complaint}" if complaint else "."),
                code="command_failed",
                details={"exit_code": status, "stderr": complaint},
            )
        if complaint:
            _log.info("%s: %s", Path(arguments[0]).name, complaint)

    def _wait(self, process: subprocess.Popen[bytes], name: str) -> int:
        try:
            return process.wait(self.timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ComponentError(
                f"{Path(name).name} did not finish within {self.timeout_s} s and was stopped.",
                code="command_timeout",
                details={"timeout_s": self.timeout_s},
            ) from error
        finally:
            # After a timeout, and after a cancellation, which is raised in the wait: nothing of the command
            # outlives its call.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _fill(argument: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument


def _tail(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _STDERR_SHOWN))
        return stream.read().decode(errors="replace").strip()


Format = Literal["json", "npz"]
_REST = "_json"


def write_payload(file: Path, payload: Any, format: Format) -> None:
    """Write nested data with arrays."""
    if format == "json":
        file.write_text(json.dumps(payload, default=_listed), encoding="utf-8")
        return
    leaves = flatten_with_paths(payload)
    arrays = {path: np.asarray(leaf) for path, leaf in leaves.items() if is_arraylike(leaf)}
    rest = {path: leaf for path, leaf in leaves.items() if not is_arraylike(leaf)}
    if rest:
        arrays[_REST] = np.array(json.dumps(rest, default=_listed))
    with file.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _listed(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def read_result(file: Path, format: Format, limits: Limits) -> Any:
    """Read what a command wrote.

    Raises:
        LimitError: the file is larger than the limits allow.
        ComponentError: it is not in the format (`command_bad_output`).
    """
    size = file.stat().st_size
    if size > limits.max_body_bytes:
        raise LimitError(
            f"The command wrote {size} bytes, at most {limits.max_body_bytes} are read.",
            code="output_too_large",
        )
    try:
        return json.loads(file.read_text("utf-8")) if format == "json" else _read_npz(file)
    except Exception as error:
        raise ComponentError(
            f"The command wrote a result that is not {format}: {error}", code="command_bad_output"
        ) from error


def _read_npz(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as archive:
        leaves: dict[str, Any] = {name: archive[name] for name in archive.files}
    rest = leaves.pop(_REST, None)
    if rest is not None:
        leaves |= json.loads(str(rest))
    return _nest(leaves)


def _nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings from `{path: leaf}`; a result keyed by paths keeps them as keys elsewhere."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, last = split_path(path)
        node = tree
        for segment in parents:
            node = node.setdefault(str(segment), {})
        node[str(last)] = leaf
    return tree


_KEYS = frozenset(
    (
        "name", "version", "description", "command", "inputs", "outputs", "format", "endpoints",
        "derivatives", "environment", "timeout_s", "build", "templates", "results",
    )
)  # fmt: skip


def define_from_command_file(file: Path) -> Definition:
    """The component that a description file defines; the command runs in the file's folder.

    Raises:
        DefinitionError: the file is missing or incomplete.
    """
    if not file.is_file():
        raise DefinitionError(f"No component file at {file}.", code="module_missing")
    content = read_mapping(file)
    missing = [key for key in ("command", "inputs", "outputs") if key not in content]
    unknown = sorted(set(map(str, content)) - _KEYS)
    if missing or unknown:
        problem = f"lacks {missing[0]!r}" if missing else f"has the unknown key {unknown[0]!r}"
        raise DefinitionError(
            f"{file} {problem}. A command description has: {', '.join(sorted(_KEYS))}.",
            code="bad_project_file",
        )
    command = content.pop("command")
    content.pop("build", None)  # how its image is made: see chainrule.deploy.images
    return from_command(command, folder=file.parent, **content)._definition


_SCALARS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
_TYPE = re.compile(
    r"(?P<differentiable>differentiable\s+)?(?P<name>[a-z]+\d*)\s*"
    r"(?P<shape>\[[^\]]*\])?\s*(?P<optional>\?)?"
)
_OPTIONS = frozenset(("type", "default", "description", "units"))


def declared_model(name: str, declaration: Any) -> type[BaseModel]:
    """The model of a declaration, or the model itself.

    Args:
        name: of the model.
        declaration: a mapping as this module describes, or a pydantic model.

    Raises:
        DefinitionError: the declaration cannot be read (`bad_schema`); the path says where.
    """
    if is_model_class(declaration):
        return declaration
    return _declared_model(name, declaration, name)


def _declared_model(name: str, declaration: Any, where: str) -> type[BaseModel]:
    if not isinstance(declaration, Mapping) or not declaration:
        raise _bad_declaration(where, "expected a mapping of field names to types")
    fields: dict[str, Any] = {
        field: _declared_field(field, value, f"{where}.{field}")
        for field, value in declaration.items()
    }
    return create_model(name, **fields)


def _declared_field(name: str, value: Any, where: str) -> Any:
    if not isinstance(name, str) or not name.isidentifier():
        raise _bad_declaration(where, "a field name has to be an identifier")
    if isinstance(value, str):
        return _with_default(_declared_type(value, None, where), {})
    if isinstance(value, Mapping) and "type" in value:
        unknown = sorted(set(value) - _OPTIONS)
        if unknown:
            raise _bad_declaration(
                where, f"unknown option {unknown[0]!r}; there are {sorted(_OPTIONS)}"
            )
        return _with_default(_declared_type(value["type"], value.get("units"), where), value)
    if isinstance(value, Mapping):
        return (_declared_model(name.capitalize(), value, where), ...)
    raise _bad_declaration(
        where, f"expected a type such as 'float64[3]'; found {type(value).__name__}"
    )


def _with_default(annotation: Any, options: Mapping[str, Any]) -> Any:
    required = None if _is_optional(annotation) else ...
    return annotation, Field(
        options.get("default", required), description=options.get("description")
    )


def _is_optional(annotation: Any) -> bool:
    return type(None) in getattr(annotation, "__args__", ())


def _declared_type(text: Any, units: Any, where: str) -> Any:
    match = _TYPE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise _bad_declaration(
            where, f"cannot read the type {text!r}; write for example 'float64[n, 3]' or 'str'"
        )
    annotation: Any = _SCALARS.get(match["name"])
    if annotation is None or match["shape"]:
        shape = _shape(match["shape"] or "[]", where)
        spec = make_spec(shape, match["name"], units)
        annotation = array_type(spec.with_differentiable() if match["differentiable"] else spec)
    return annotation | None if match["optional"] else annotation


def _shape(text: str, where: str) -> Any:
    inside = text[1:-1].strip()
    if inside == "...":
        return ...
    return tuple(_size(part.strip(), where) for part in inside.split(",") if part.strip())


def _size(text: str, where: str) -> int | str | None:
    if text.isdigit():
        return int(text)
    if text == "?" or text.isidentifier():
        return None if text == "?" else text
    raise _bad_declaration(where, f"cannot read the size {text!r}; use a number, a name or '?'")


def _bad_declaration(where: str, reason: str) -> DefinitionError:
    return DefinitionError(f"{where}: {reason}.", code="bad_schema", path=where)
