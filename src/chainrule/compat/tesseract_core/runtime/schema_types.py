"""The types of schemas, those that `runtime` does not export included. See `chainrule.compat._mirror`."""

from chainrule.compat._mirror import mirror
from chainrule.compat.tesseract_core.runtime import _array_types

ALLOWED_DTYPE_NAMES = _array_types.ALLOWED_DTYPE_NAMES
ArrayFlags = _array_types.ArrayFlags
PydanticArrayAnnotation = _array_types.PydanticArrayAnnotation

__getattr__, __dir__ = mirror(
    "tesseract_core.runtime.schema_types",
    "ALLOWED_DTYPE_NAMES",
    "ArrayFlags",
    "PydanticArrayAnnotation",
)
