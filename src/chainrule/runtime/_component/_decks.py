"""Input decks: text files that a program reads, made from templates, and numbers in the text that it writes.

A template has `{path}` where an input belongs, or `{path:format}` with a format of Python for each number,
and `{{` for a brace. Numbers are written so that they can be read back exactly. An array is its numbers with
a blank between them, and a line for each row; `{path.size}` is how many it has. The file `stdin` is what the
program reads from its standard input.

A result is found by a pattern (a regular expression): every match gives one number, the first group of the
match if it has one. Without a pattern all numbers of the file are meant. Numbers of Fortran (`1.0D+03`) are
read, too.
"""

from __future__ import annotations

import contextlib
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from chainrule._errors import ComponentError, DefinitionError
from chainrule._trees import get_at_path

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?)\b"
STANDARD_INPUT, STANDARD_OUTPUT = "stdin", "stdout"


@dataclass(frozen=True)
class ResultPlace:
    """Where a result is: in a file, or in what the program prints, by a pattern."""

    file: str
    pattern: str | None = None


@dataclass(frozen=True)
class Decks:
    """The text files of a program.

    Attributes:
        templates: name of a file → its template.
        results: path of an output → where it is found.
    """

    templates: Mapping[str, str] = field(default_factory=dict)
    results: Mapping[str, ResultPlace] = field(default_factory=dict)

    @classmethod
    def read(cls, templates: Any, results: Any, inputs: Any, outputs: Any) -> Decks:
        """From what an author gives, checked against the schemas.

        Raises:
            DefinitionError: a placeholder or a result that the schema does not have, a pattern or a format
                that is not one, or a file outside of the folder of a call (`bad_template`).
        """
        found = {path: _found(path, where) for path, where in (results or {}).items()}
        for file in (*(templates or {}), *(where.file for where in found.values())):
            _check_inside(file)
        for file, template in (templates or {}).items():
            for name, format in _placeholders(file, template):
                if not _is_format(format):
                    raise DefinitionError(
                        f"The template of {file} writes {name!r} with {format!r}, which is no format of "
                        "Python for a number or text.",
                        code="bad_template",
                    )
                if name.partition(".")[0] not in inputs.model_fields:
                    raise _bad(f"The template of {file} names {name!r}, which is no input", inputs)
        for path in found:
            if path.partition(".")[0] not in outputs.model_fields:
                raise _bad(f"results names {path!r}, which is no output", outputs)
        for name, output in outputs.model_fields.items():
            is_found = any(path.partition(".")[0] == name for path in found)
            if found and output.is_required() and not is_found:
                raise _bad(f"results does not say where {name!r} is found", outputs)
        return cls(dict(templates or {}), found)

    def write(self, folder: Path, inputs: Any) -> None:
        """Write the files of a call."""
        for file, template in self.templates.items():
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_rendered(template, inputs), encoding="utf-8")

    def find(self, folder: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs, in the files of a call; `arrays` has the declarations of those that are arrays.

        Raises:
            ComponentError: a file is missing (`command_no_output`), or has no such number
                (`command_bad_output`).
        """
        tree: dict[str, Any] = {}
        for path, where in self.results.items():
            numbers = _numbers(folder, path, where)
            shape = getattr(arrays.get(path), "shape", ())
            *parents, last = path.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = _shaped(numbers, shape, path, where)
        return tree


def _found(path: str, where: Any) -> ResultPlace:
    if isinstance(where, Mapping) and set(where) <= {"file", "pattern"} and "file" in where:
        found = ResultPlace(**where)
    elif isinstance(where, str):
        found = ResultPlace(where)
    elif isinstance(where, (tuple, list)) and len(where) == 2:
        found = ResultPlace(*where)
    else:
        raise DefinitionError(
            f"results: expected a file, or a file and a pattern, for {path!r}; found {where!r}.",
            code="bad_template",
        )
    try:
        re.compile(found.pattern or "")
    except re.error as error:
        raise DefinitionError(
            f"results: the pattern of {path!r} is not a regular expression: {error}.",
            code="bad_template",
        ) from error
    return found


def _check_inside(file: str) -> None:
    """Refuse a file that another call would share."""
    path = PurePath(file)
    if path.is_absolute() or ".." in path.parts:
        raise DefinitionError(
            f"Expected files inside of the folder that each call has for itself; found {file!r}.",
            code="bad_template",
        )


def _placeholders(file: str, template: str) -> list[tuple[str, str]]:
    """The path and the format of each."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise DefinitionError(
            f"The template of {file} cannot be read: {error}. A brace is written {{{{ or }}}}.",
            code="bad_template",
        ) from error
    return [(path, format or "") for _, path, format, _ in parts if path is not None]


def _is_format(format: str) -> bool:
    """Whether a value of some type can be written with it."""
    for example in (1.0, 1, "text"):
        with contextlib.suppress(ValueError):
            f"{example:{format}}"
            return True
    return False


def _bad(reason: str, schema: Any) -> DefinitionError:
    known = ", ".join(schema.model_fields)
    return DefinitionError(f"{reason}; there are {known}.", code="bad_template")


def _rendered(template: str, inputs: Any) -> str:
    parts = []
    for text, path, format, _ in string.Formatter().parse(template):
        parts.append(text)
        if path is not None:
            parts.append(_written(_value(inputs, path), format or ""))
    return "".join(parts)


def _value(inputs: Any, path: str) -> Any:
    above, _, last = path.rpartition(".")
    if last == "size" and above:
        array = get_at_path(inputs, above)
        if isinstance(array, (list, np.ndarray)):
            return np.size(array)
    return get_at_path(inputs, path)


def _written(value: Any, format: str) -> str:
    if isinstance(value, (list, tuple, np.ndarray)) and np.ndim(value):
        array = np.asarray(value)
        between = " " if array.ndim == 1 else "\n"
        return between.join(_written(row, format) for row in array)
    plain = value.item() if isinstance(value, (np.generic, np.ndarray)) else value
    return f"{plain:{format}}" if format else str(plain)


def _numbers(folder: Path, path: str, where: ResultPlace) -> list[float]:
    file = folder / where.file
    if not file.is_file():
        raise ComponentError(
            f"The command wrote no file {where.file}, in which {path} is.", code="command_no_output"
        )
    text = file.read_text(encoding="utf-8", errors="replace")
    matches = re.finditer(where.pattern or _NUMBER, text, re.MULTILINE)
    found = [match[1] if match.re.groups else match[0] for match in matches]
    if not found:
        sought = "no number" if where.pattern is None else f"no match of {where.pattern!r}"
        raise ComponentError(
            f"{where.file} has {sought} for {path}; the number of its lines is {len(text.splitlines())}.",
            code="command_bad_output",
            path=path,
        )
    try:
        return [float(re.sub("[dD]", "e", text.strip())) for text in found]
    except ValueError as error:
        raise ComponentError(
            f"{where.file}: what the pattern finds for {path} is not a number: {error}.",
            code="command_bad_output",
            path=path,
        ) from error


def _shaped(numbers: list[float], shape: Any, path: str, where: ResultPlace) -> Any:
    if shape == ():
        if len(numbers) > 1:
            raise ComponentError(
                f"Expected one number for {path} in {where.file}; found {len(numbers)}.",
                code="command_bad_output",
                path=path,
            )
        return numbers[0]
    open_sizes = [-1 if size is None else size for size in shape or (-1,)]
    try:
        return np.reshape(numbers, open_sizes)
    except ValueError as error:
        raise ComponentError(
            f"Expected numbers for an array of shape {tuple(shape)} for {path} in {where.file}; found "
            f"{len(numbers)}.",
            code="command_bad_output",
            path=path,
        ) from error
