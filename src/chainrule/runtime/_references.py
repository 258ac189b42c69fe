"""`ComponentReference`: a field in which a caller names another component that the author's code calls.

    {"type": "api_path", "ref": "…/tesseract_api.py"}    a file, loaded into this process
    {"type": "url",      "ref": "http://host:8000"}      a served component
    {"type": "image",    "ref": "solver:1.2"}            a container image, which is started

Each of the three lets the caller run code, send requests or start containers here, so each is refused unless
the operator lists it in `allow_references`. A component object may be passed in Python.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from chainrule._errors import NotGrantedError, missing_dependency
from chainrule._registry import provided
from chainrule.runtime._config import ReferenceKind
from chainrule.runtime._runs import get_config


class ComponentReference:
    """Another component, named by the caller; attributes are those of the component.

    Args:
        component: the component that is referred to.
        kind: how it was named.
        ref: its path, address or image; empty when an object was passed.
    """

    def __init__(self, component: Any, kind: str = "object", ref: str = "") -> None:
        self._component = component
        self._kind = kind
        self._ref = ref

    def __getattr__(self, name: str) -> Any:
        return getattr(self._component, name)

    def __repr__(self) -> str:
        return f"ComponentReference({self._kind}: {self._ref or self._component!r})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _open,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: {"type": value._kind, "ref": value._ref}
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "title": "TesseractReference",
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": sorted(get_args(ReferenceKind))},
                "ref": {"type": "string"},
            },
            "required": ["type", "ref"],
            "additionalProperties": False,
            "x-tesseract-type": "TesseractReference",
        }


def _open(value: Any) -> ComponentReference:
    if isinstance(value, ComponentReference):
        return value
    if callable(getattr(value, "apply", None)):
        return ComponentReference(value)
    is_reference = isinstance(value, dict) and set(value) == {"type", "ref"}
    if (
        not is_reference
        or value["type"] not in get_args(ReferenceKind)
        or not isinstance(value["ref"], str)
    ):
        raise ValueError("expected a component, or an object with 'type' and 'ref'")
    kind, ref = cast(ReferenceKind, value["type"]), value["ref"]
    if kind not in get_config().allow_references:
        raise NotGrantedError(
            f"This component does not open references of type {kind!r}. Its operator can allow them with "
            f"allow_references=[{kind!r}].",
            code="reference_not_granted",
        )
    return ComponentReference(_opener(kind)(ref), kind, ref)


def _opener(kind: ReferenceKind) -> Any:
    if kind == "api_path":
        from chainrule.runtime import load_component

        return load_component
    try:
        client = provided("component")
    except ImportError as error:
        raise missing_dependency(
            f"References of type {kind!r} need", error.name, "'chainrule[serve]'"
        ) from error
    return client.from_url if kind == "url" else client.from_image
