"""Regression tests as files: a call, and what must come of it.

    {"endpoint": "apply", "payload": {"inputs": ...}, "expected_outputs": ..., "rtol": 1e-5, "atol": 1e-8}

The files are those of Tesseract (`test_cases/test_*.json` beside the component). They run over every
transport.

`compare` lists every difference between two trees, with its path. Fields of the outputs that have a
default, and have it, may be missing in a test file (`with_defaults`).

Exceptions are matched by name and nothing is imported: a test file must not be able to load code. An
author's exception may arrive wrapped, so everything in the chain of causes counts. From another process its
message and the names of its class and of its bases arrive, as details of the error that stands for it.
"""

from __future__ import annotations

import builtins
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from chainrule._codec import decode_tree, encode_array
from chainrule._describe import describe_array
from chainrule._errors import CapabilityError, ChainruleError, InputError, TransportError
from chainrule._paths import Key, Segment, join_path
from chainrule._trees import is_arraylike, map_leaves
from chainrule.runtime._component._document import Document
from chainrule.runtime._component._failures import class_name
from chainrule.runtime._component._isolation import without_package
from chainrule.runtime._schema import number_kind

logger = logging.getLogger(__name__)


class RegressionSpec(BaseModel):
    """One test: exactly one of `expected_outputs` and `expected_exception` is given.

    Attributes:
        endpoint: name of the endpoint, in snake case.
        payload: the whole body of the request.
        expected_outputs: what must come back; arrays encoded (then shape and dtype must be equal) or as
            plain lists (which say nothing about the dtype). Fields that have their default may be left out.
        expected_exception: name of the exception, a builtin or dotted.
        expected_exception_regex: must be found in its message.
        atol: allowed absolute difference of inexact values.
        rtol: allowed relative difference of inexact values.
        skip_output_path_checks: do not compare file paths.
        cli_config: files that the test needs, as the peer's command line takes them: `input_path`, or one of
            `volume_mounts` at `/tesseract/input_data`, relative to the file of the test.
    """

    model_config = ConfigDict(extra="forbid")

    endpoint: str
    payload: dict[str, Any] = Field(default_factory=dict)
    expected_outputs: Any = None
    expected_exception: str | None = None
    expected_exception_regex: str | None = None
    atol: float = Field(default=1e-8, ge=0)
    rtol: float = Field(default=1e-5, ge=0)
    skip_output_path_checks: bool = False
    cli_config: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_expectation(self) -> RegressionSpec:
        if (self.expected_outputs is None) == (self.expected_exception is None):
            raise ValueError("give exactly one of expected_outputs and expected_exception")
        if self.expected_exception_regex is not None and self.expected_exception is None:
            raise ValueError("expected_exception_regex needs expected_exception")
        return self


@dataclass(frozen=True)
class RegressionResult:
    """The outcome: `failed` is a wrong answer, `error` an exception that was not expected."""

    status: Literal["passed", "failed", "error"]
    message: str
    endpoint: str

    @property
    def passed(self) -> bool:
        """Whether all is as expected."""
        return self.status == "passed"


def find_tests(folder: str | Path) -> list[Path]:
    """The test files that belong to a component: `test_cases/test_*.json` in its folder."""
    return sorted(Path(folder).glob("test_cases/test_*.json"))


def run_test(
    component: Any,
    test: RegressionSpec | Mapping[str, Any] | str | Path,
    *,
    input_path: Path | None = None,
) -> RegressionResult:
    """Run one regression test.

    Args:
        component: anything with `call(endpoint, payload)`, or with the endpoints as methods.
        test: the test, as an object or as the path of its file.
        input_path: the folder of the files that the test names; by default the one in the `cli_config` of a
            test that is a file.

    Returns:
        The outcome with every difference in the message; nothing is raised for a failing component.

    Raises:
        pydantic.ValidationError: the test itself is malformed.
    """
    spec = _read(test)
    named = _input_folder(spec.cli_config or {})
    if input_path is None and named is not None and isinstance(test, (str, Path)):
        input_path = Path(test).parent / named
    if input_path is not None and hasattr(component, "configured"):
        # A component elsewhere has the files that its operator gave it.
        component, spec = _with_files(component, spec, input_path)
    if spec.endpoint not in component.available_endpoints:
        known = ", ".join(component.available_endpoints)
        return _failed(spec, f"the component has no endpoint {spec.endpoint!r}; it has {known}")
    try:
        result = call(component, spec.endpoint, spec.payload)
    except Exception as error:
        return _judge_exception(spec, error)
    if spec.expected_exception is not None:
        return _failed(spec, f"expected {spec.expected_exception}, but the call succeeded")
    differences = compare(
        decode_tree(result),
        with_defaults(component, spec.endpoint, decode_tree(spec.expected_outputs)),
        rtol=spec.rtol,
        atol=spec.atol,
        skip_paths=spec.skip_output_path_checks,
    )
    if differences:
        return _failed(spec, "\n".join(differences))
    return RegressionResult("passed", "all outputs are as expected", spec.endpoint)


def record(
    component: Any,
    endpoint: str,
    payload: Mapping[str, Any],
    *,
    path: str | Path | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-8,
    expect_exception: bool = False,
) -> dict[str, Any]:
    """Make a regression test of what a component answers now.

    Args:
        component: as in `run_test`.
        endpoint: which endpoint to call.
        payload: the whole body of the request.
        path: when given, the test is also written there as JSON.
        rtol: of the test.
        atol: of the test.
        expect_exception: record the exception that the call raises. Without it the exception is raised
            and no test is made, because a misspelled field would become the expected behaviour.

    Returns:
        The test, JSON-ready.

    Raises:
        InputError: an exception is expected, but the call succeeds (`exception_missing`).
        ChainruleError: what the call raises, unless it is expected. That the component has no such
            endpoint, or cannot be reached, is never recorded.
    """
    test: dict[str, Any] = {"endpoint": endpoint, "payload": _encode_tree(payload)}
    test |= _expectation(component, endpoint, payload, expect_exception)
    test |= {"rtol": rtol, "atol": atol}
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(test, indent=2) + "\n")
        logger.info("wrote %s", path)
    return test


def _expectation(
    component: Any, endpoint: str, payload: Mapping[str, Any], expect_exception: bool
) -> dict[str, Any]:
    try:
        outputs = _encode_tree(call(component, endpoint, payload))
    except (CapabilityError, TransportError):
        raise  # the component did not answer
    except Exception as error:
        if not expect_exception:
            raise
        return {"expected_exception": exception_name(error)}
    if expect_exception:
        raise InputError(
            f"{endpoint}: the call was expected to raise, but it succeeds; no test was recorded.",
            code="exception_missing",
        )
    return {"expected_outputs": outputs}


def call(component: Any, endpoint: str, payload: Mapping[str, Any]) -> Any:
    """Call an endpoint by name with the body of a request."""
    if hasattr(component, "call"):
        return component.call(endpoint, payload)
    return getattr(component, endpoint)(**payload)


def _read(test: RegressionSpec | Mapping[str, Any] | str | Path) -> RegressionSpec:
    if isinstance(test, (str, Path)):
        return RegressionSpec.model_validate_json(Path(test).read_bytes())
    return test if isinstance(test, RegressionSpec) else RegressionSpec.model_validate(test)


_INPUTS_IN_IMAGE = "/tesseract/input_data"


def _with_files(component: Any, spec: RegressionSpec, folder: Path) -> tuple[Any, RegressionSpec]:
    """A component that may read a folder, and a test with paths relative to it."""

    def shorten(leaf: Any) -> Any:
        return re.sub(f"^(@?){_INPUTS_IN_IMAGE}/", r"\1", leaf) if isinstance(leaf, str) else leaf

    payload = map_leaves(shorten, spec.payload, plain=True)
    granted = component.configured(input_path=folder.resolve())
    return granted, spec.model_copy(update={"payload": payload})


def _input_folder(config: Mapping[str, Any]) -> str | None:
    """The folder of input files in the `cli_config` of a test."""
    mounts = (mount.split(":") for mount in config.get("volume_mounts") or ())
    mounted = (source for source, target, *_ in mounts if target.rstrip("/") == _INPUTS_IN_IMAGE)
    return config.get("input_path") or next(mounted, None)


def _failed(spec: RegressionSpec, message: str) -> RegressionResult:
    return RegressionResult("failed", message, spec.endpoint)


def _judge_exception(spec: RegressionSpec, error: Exception) -> RegressionResult:
    if spec.expected_exception is None:
        return RegressionResult("error", describe_chain(error), spec.endpoint)
    if matches_exception(error, spec.expected_exception, spec.expected_exception_regex):
        return RegressionResult("passed", "raised as expected", spec.endpoint)
    wanted = spec.expected_exception
    if spec.expected_exception_regex is not None:
        wanted += f" matching {spec.expected_exception_regex!r}"
    return _failed(spec, f"expected {wanted}, got {describe_chain(error)}")


def _encode_tree(tree: Any) -> Any:
    """Nested data as a test file holds it."""
    return map_leaves(_encode_leaf, tree, plain=True)


def _encode_leaf(leaf: Any) -> Any:
    if is_arraylike(leaf):
        return encode_array(np.asarray(leaf))
    if isinstance(leaf, (set, frozenset)):  # paths of a selection: the same file every time
        return sorted(leaf)
    return str(leaf) if isinstance(leaf, Path) else leaf


Where = tuple[Segment, ...]


def compare(
    result: Any, expected: Any, *, rtol: float, atol: float, skip_paths: bool = False
) -> list[str]:
    """All differences between two trees, one line each.

    Args:
        result: what came.
        expected: what was expected. An array fixes shape and dtype; a plain list or number in place of
            an array fixes the shape only.
        rtol: allowed relative difference of inexact values.
        atol: allowed absolute difference of inexact values.
        skip_paths: let file paths be anything.
    """
    return list(_differences(result, expected, (), _Tolerance(rtol, atol, skip_paths)))


class _Tolerance:
    def __init__(self, rtol: float, atol: float, skip_paths: bool) -> None:
        self.rtol, self.atol, self.skip_paths = rtol, atol, skip_paths


def _differences(result: Any, expected: Any, at: Where, allowed: _Tolerance) -> Iterator[str]:
    if hasattr(result, "model_dump"):
        result = result.model_dump()
    if hasattr(result, "todense"):
        result = result.todense()
    if isinstance(result, (np.ndarray, np.generic)) or isinstance(expected, np.ndarray):
        yield from _array_differences(result, expected, at, allowed)
    elif isinstance(expected, Mapping) and isinstance(result, Mapping):
        yield from _mapping_differences(result, expected, at, allowed)
    elif isinstance(expected, (list, tuple)) and isinstance(result, (list, tuple)):
        if len(result) != len(expected):
            yield _line(at, f"has {len(result)} items, expected {len(expected)}")
            return
        for index, pair in enumerate(zip(result, expected, strict=True)):
            yield from _differences(*pair, (*at, index), allowed)
    else:
        yield from _plain_differences(result, expected, at, allowed)


def _mapping_differences(
    result: Mapping[str, Any], expected: Mapping[str, Any], at: Where, allowed: _Tolerance
) -> Iterator[str]:
    for key in expected:
        here = (*at, key if str(key).isidentifier() else Key(key))
        if key in result:
            yield from _differences(result[key], expected[key], here, allowed)
        else:
            yield _line(here, "is missing")
    for key in result:
        if key not in expected:
            yield _line((*at, key if str(key).isidentifier() else Key(key)), "was not expected")


def _array_differences(result: Any, expected: Any, at: Where, allowed: _Tolerance) -> Iterator[str]:
    try:
        found, wanted = np.asarray(result), np.asarray(expected)
    except ValueError:
        yield _line(at, f"is {type(result).__name__}, expected an array")
        return
    kinds = {number_kind(found.dtype), number_kind(wanted.dtype)}
    if not kinds <= set("biufc"):
        yield _line(at, f"is {type(result).__name__}, expected {type(expected).__name__}")
    elif found.shape != wanted.shape or (
        isinstance(expected, np.ndarray) and found.dtype != wanted.dtype
    ):
        yield _line(at, f"is {describe_array(found)}, expected {describe_array(wanted)}")
    else:
        yield from _value_differences(found, wanted, at, allowed)


def _value_differences(
    found: np.ndarray, wanted: np.ndarray, at: Where, allowed: _Tolerance
) -> Iterator[str]:
    if {number_kind(found.dtype), number_kind(wanted.dtype)} & set("fc"):
        close = np.isclose(found, wanted, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True)
    else:
        close = found == wanted
    if not close.all():
        with np.errstate(invalid="ignore"):
            worst = np.max(np.abs(found[~close].astype(complex) - wanted[~close]))
        first = tuple(int(i) for i in np.argwhere(~close)[0])
        yield _line(
            at,
            f"differs in {int((~close).sum())} of {close.size} values, first at {list(first)}; "
            f"largest difference {worst:.3g}",
        )


def _plain_differences(result: Any, expected: Any, at: Where, allowed: _Tolerance) -> Iterator[str]:
    if isinstance(result, PurePath):
        result = str(result)
        expected = result if allowed.skip_paths else expected
    numbers = (int, float)
    if (
        isinstance(result, float)
        and isinstance(expected, numbers)
        and not isinstance(expected, bool)
    ):
        if not np.isclose(result, expected, rtol=allowed.rtol, atol=allowed.atol, equal_nan=True):
            yield _line(at, f"is {result!r}, expected {expected!r}")
    elif type(result) is not type(expected) or result != expected:
        yield _line(at, f"is {result!r:.80}, expected {expected!r:.80}")


def _line(at: Where, text: str) -> str:
    return f"{join_path(*at) or 'the result'} {text}"


def with_defaults(component: Any, endpoint: str, expected: Any) -> Any:
    """Expected outputs with the defaults of the component's schema.

    Args:
        component: a component in this process, or a handle to any. Of one that is elsewhere those defaults
            are known that its OpenAPI document states.
        endpoint: only `apply` answers by the schema.
        expected: the outputs, arrays decoded.
    """
    if endpoint != "apply":
        return expected
    schema = getattr(getattr(component, "local", None) or component, "output_schema", None)
    if schema is None:
        document = Document(getattr(component, "openapi_schema", {}))
        return document.with_defaults("outputs", expected)
    try:
        model = schema.model_validate(expected, context={"skip_path_checks": True})
    except ValidationError:
        return expected  # the comparison says what is wrong
    return _filled(expected, model)


def _filled(expected: Any, model: Any) -> Any:
    """What is expected as it was written, and what only the validated form of it has."""
    if isinstance(model, BaseModel) and isinstance(expected, Mapping):
        missing = set(type(model).model_fields) - set(expected)
        return model.model_dump(include=missing) | {
            name: _filled(value, getattr(model, name, None)) for name, value in expected.items()
        }
    if isinstance(model, Mapping) and isinstance(expected, Mapping):
        return {key: _filled(value, model.get(key)) for key, value in expected.items()}
    if isinstance(model, (list, tuple)) and len(model) == len(expected):
        return [_filled(*pair) for pair in zip(expected, model, strict=True)]
    return expected


def matches_exception(error: BaseException, name: str, regex: str | None) -> bool:
    """Whether an exception, or one that caused it, has this name (or a base of it) and message."""

    name = without_package(name)  # as older recordings have it

    def says(text: str) -> bool:
        return regex is None or re.search(regex, text) is not None

    remote = _remote_facts(error)
    return any(_has_name(type(found), name) and says(str(found)) for found in _chain(error)) or (
        "exception" in remote
        and _had_name(remote, name)
        and says(remote.get("exception_message", ""))
    )


def exception_name(error: BaseException) -> str:
    """The name by which a test file expects an exception: that of the author's, if one was the cause."""
    remote = _remote_facts(error)
    if error.__cause__ is None and "exception" in remote:
        return _class_names(remote)[0].removeprefix("builtins.")
    return class_name(type(error.__cause__ or error)).removeprefix("builtins.")


def describe_chain(error: BaseException) -> str:
    """`Type: message`, with causes."""
    return ", caused by ".join(f"{type(found).__name__}: {found}" for found in _chain(error))


_INVALID = ("pydantic.ValidationError", "pydantic_core._pydantic_core.ValidationError")
"""What the peer raises for every request that is refused, paths that do not exist included."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _has_name(cls: type[BaseException], name: str) -> bool:
    if name in _INVALID:
        return issubclass(cls, (ValidationError, InputError))
    exported = _exported(name)
    if exported is not None:
        return issubclass(cls, exported)
    return any(class_name(base) == name for base in cls.__mro__)


def _exported(name: str) -> type | None:
    """The class of this process that a name means; often it was defined in a longer module."""
    module, _, short = name.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), short, None)
    return found if isinstance(found, type) else None


def _remote_facts(error: BaseException) -> dict[str, Any]:
    return error.details if isinstance(error, ChainruleError) else {}


def _had_name(remote: dict[str, Any], name: str) -> bool:
    """Whether an exception of another process, or a base of it, is meant by a name."""
    exported = _exported(name)
    names = _class_names(remote)
    if exported is not None and "." in names[0]:
        return class_name(exported) in names
    return any(_may_be(found, name) for found in names)


def _may_be(full_name: str, name: str) -> bool:
    """Whether a class may be known by a name: the whole one, or that of another module of its package."""
    package, _, _ = full_name.rpartition(".")
    same_package = not package or package.split(".")[0] == name.split(".")[0]
    return same_package and full_name.rpartition(".")[2] == name.rpartition(".")[2]


def _class_names(remote: dict[str, Any]) -> list[str]:
    """Full names of the class and its bases; of a server that does not tell them, the short name.

    That of a builtin is then taken for the builtin.
    """
    names = remote.get("exception_classes")
    if names:
        return list(names)
    builtin = getattr(builtins, remote["exception"], None)
    if not isinstance(builtin, type):
        return [remote["exception"]]
    return [class_name(base) for base in builtin.__mro__]
