"""The shapes of the outputs of a derivative request, as far as they are known without computing them.

A cotangent has the shape of its output, which a schema may leave open. A named dimension has its size from
the inputs. What is still open is asked of the author's `abstract_eval`, once for each kind of inputs; an
author without one gets cotangents whose open sizes nobody has checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from chainrule._lru_cache import LRUCache
from chainrule._trees import get_at_path, is_arraylike, map_with_paths
from chainrule.runtime._component._author import call_author
from chainrule.runtime._component._plain import to_plain
from chainrule.runtime._component._schemas import Context, Schemas
from chainrule.runtime._schema import ArraySpec

ABSTRACT_EVAL = "abstract_eval"

Shapes = Mapping[str, ArraySpec]


class OutputShapes:
    """What is known of the outputs' shapes.

    Args:
        schemas: of the component.
        abstract_eval: the author's; `None` if there is none.
    """

    def __init__(self, schemas: Schemas, abstract_eval: Callable[[Any], Any] | None = None) -> None:
        self._schemas = schemas
        self._abstract_eval = abstract_eval
        self._answers: LRUCache[str, Any] = LRUCache(64)

    def named(self, outputs: Shapes, context: Context) -> Shapes:
        """The declarations with the sizes that the inputs give to names of dimensions."""
        table = context.get("dims") or {}
        return {path: _with_sizes(spec, table) for path, spec in outputs.items()}

    def exact(self, outputs: Shapes, inputs: BaseModel) -> Shapes:
        """The declarations with the sizes that are still open, if the author tells them."""
        if self._abstract_eval is None or not any(map(_is_open, outputs.values())):
            return outputs
        answer = self._ask(self._abstract_eval, inputs)
        return {
            path: replace(spec, shape=tuple(get_at_path(answer, path).shape), dimension_names=())
            if _is_open(spec)
            else spec
            for path, spec in outputs.items()
        }

    def _ask(self, abstract_eval: Callable[[Any], Any], inputs: BaseModel) -> Any:
        tree = map_with_paths(_abstract, to_plain(inputs))
        key = repr(tree)
        answer = self._answers.get(key)
        if answer is None:
            context: Context = {"dims": {}}
            model = self._schemas.read_abstract_inputs(tree, ABSTRACT_EVAL, context)
            result = call_author(abstract_eval, ABSTRACT_EVAL, model)
            answer = self._schemas.read_abstract_outputs(result, ABSTRACT_EVAL, context)
            self._answers.put(key, answer)
        return answer


def _is_open(spec: ArraySpec) -> bool:
    return spec.shape is None or None in spec.shape


def _with_sizes(spec: ArraySpec, table: Mapping[str, tuple[int, str]]) -> ArraySpec:
    if not spec.dimension_names or spec.shape is None:
        return spec
    sizes = tuple(
        table[name][0] if name is not None and name in table else size
        for size, name in zip(spec.shape, spec.dimension_names, strict=True)
    )
    return replace(spec, shape=sizes)


def _abstract(path: str, leaf: Any) -> Any:
    if not is_arraylike(leaf):
        return leaf
    return {"shape": list(leaf.shape), "dtype": str(leaf.dtype)}
