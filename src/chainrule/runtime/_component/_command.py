"""Components from executables in any language.

For every call the payload is written to a file, the command is run, and its result is read back. The files
live in a temporary folder that is gone afterwards, whatever happens.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from chainrule._errors import ComponentError, DefinitionError
from chainrule.runtime._component._capabilities import ENDPOINTS, Implementation
from chainrule.runtime._component._command_files import Format, read_result, write_payload
from chainrule.runtime._component._declared import declared_model
from chainrule.runtime._component._definition import Definition
from chainrule.runtime._component._finite import Derivatives, finite_implementations
from chainrule.runtime._component._hashing import hash_parts
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._component._plain import to_plain
from chainrule.runtime._config import ComponentConfig
from chainrule.runtime._runs import get_config

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
    folder: str | Path = ".",
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    config: ComponentConfig | Mapping[str, Any] | None = None,
) -> LocalComponent:
    """Make a component of any executable.

    The command's arguments may contain `{input}` and `{output}` (files that are made for the call) and
    `{endpoint}`. Without `{input}` the payload is given on standard input, without `{output}` the result
    is read from standard output. No shell is involved.

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
        folder: where the command runs.
        environment: variables added to the environment of the command.
        timeout_s: how long one run may take.
        config: settings of this component.

    Raises:
        DefinitionError: no such executable (`command_missing`), or schemas that cannot be read.
    """
    program = _Program(Path(folder).resolve(), format, dict(environment or {}), timeout_s)
    commands = {"apply": tuple(command), **{k: tuple(v) for k, v in (endpoints or {}).items()}}
    definition = define_command(
        program,
        commands,
        name=name or Path(command[0]).stem,
        version=version,
        description=description,
        input_schema=declared_model("InputSchema", inputs),
        output_schema=declared_model("OutputSchema", outputs),
        derivatives=derivatives,
    )
    return LocalComponent(definition, config)


def define_command(
    program: _Program,
    commands: Mapping[str, tuple[str, ...]],
    *,
    derivatives: Derivatives = None,
    **facts: Any,
) -> Definition:
    """The definition of a component whose endpoints are commands."""
    for endpoint, command in commands.items():
        if endpoint not in ENDPOINTS:
            raise DefinitionError(
                f"Unknown endpoint {endpoint!r}; there are {', '.join(ENDPOINTS)}.",
                code="bad_endpoint",
            )
        program.check(command)
    functions = {name: _endpoint_function(program, name, c) for name, c in commands.items()}
    implementations = {name: Implementation(f) for name, f in functions.items()}
    if derivatives is not None:
        schemas = facts["input_schema"], facts["output_schema"]
        finite = finite_implementations(functions["apply"], derivatives, *schemas)
        implementations = finite | implementations
    return Definition(
        implementations=implementations,
        function=functions["apply"],
        content_hash=_hash_commands(program, commands, facts),
        **facts,
    )


def _endpoint_function(
    program: _Program, endpoint: str, command: tuple[str, ...]
) -> Callable[..., Any]:
    if endpoint in ("apply", "abstract_eval"):
        return lambda inputs: program.run(command, endpoint, to_plain(inputs))
    return lambda **payload: program.run(command, endpoint, to_plain(payload))


def _hash_commands(
    program: _Program, commands: Mapping[str, tuple[str, ...]], facts: Mapping[str, Any]
) -> str:
    parts = [("schemas", _schema_text(facts).encode())]
    for endpoint, command in sorted(commands.items()):
        parts.append((endpoint, "\0".join(command).encode()))
        for argument in command:
            file = program.folder / argument
            if file.is_file():
                parts.append((argument, file.read_bytes()))
    return hash_parts(parts)


def _schema_text(facts: Mapping[str, Any]) -> str:
    schemas = (facts["input_schema"], facts["output_schema"])
    return "\n".join(
        f"{name}: {field.annotation!r}"
        for schema in schemas
        for name, field in schema.model_fields.items()
    )


@dataclass(frozen=True)
class _Program:
    """How commands of one component are run."""

    folder: Path
    format: Format
    environment: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None

    def check(self, command: tuple[str, ...]) -> None:
        """Refuse a command whose executable does not exist."""
        is_path = command and os.sep in command[0]
        found = command and (
            (self.folder / command[0]).is_file() if is_path else shutil.which(command[0])
        )
        if not found:
            raise DefinitionError(
                f"There is no executable {command[0] if command else ''!r} "
                + (f"in {self.folder}." if is_path else "on the PATH."),
                code="command_missing",
            )

    def run(self, command: tuple[str, ...], endpoint: str, payload: Any) -> Any:
        """Write the payload, run the command, read its result."""
        with tempfile.TemporaryDirectory(prefix="chainrule-") as scratch:
            source, target = (Path(scratch) / f"{n}.{self.format}" for n in ("input", "output"))
            write_payload(source, payload, self.format)
            places = {"input": str(source), "output": str(target), "endpoint": endpoint}
            arguments = [_fill(argument, places) for argument in command]
            is_piped = "{output}" not in "".join(command)
            self._execute(arguments, source, target if is_piped else None, Path(scratch))
            if not target.is_file():
                raise ComponentError(
                    f"{command[0]} finished but wrote no result to {{output}}.",
                    code="command_no_output",
                )
            return read_result(target, self.format, get_config().limits)

    def _execute(
        self, arguments: list[str], source: Path, piped: Path | None, scratch: Path
    ) -> None:
        errors = scratch / "stderr"
        output = piped or scratch / "stdout"
        with source.open("rb") as given, output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                arguments,
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=given,
                stdout=out,
                stderr=err,
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
