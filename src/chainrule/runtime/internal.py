"""What other packages of this project use of `runtime`; no promise to users.

Document               what the OpenAPI document of a component says
complete_inputs        inputs with their defaults, also of a component behind a handle
Field                  one leaf of a schema, for people
Leaf                   one differentiable array of a call: path, shape, units, bounds
load_module            run a Python file in a package of its own
split_source           the file of a source, and the name in it
COMPONENT_FILES        names of the file that defines the component of a folder
check_sources          find mistakes in the syntax of a component without running it
read_mapping           the mapping in a project file
failure_of             the error that stands for an exception of an author
keep_output            copy what is printed into the log folder of a run
fit_abstract           the shape and dtype that a declaration gives to an array
to_plain               the plain tree of a model
PEER_MODULES           which module stands in for which of `tesseract_core`
ArrayFlags             what an array type may be marked with, by the name of tesseract-core
outside_config         the settings for code that runs in no component
Run                    one call of an endpoint: its id, folder and settings
log_handler            a handler of log records in the format of the settings
reuse_residuals        keep what backward passes need, in this process and for others
product_from_jacobian  a product with a Jacobian that is given as blocks
Layout                 named arrays as one long vector, and back
array_leaves           path pattern → declaration of the arrays of a model
is_array_type          whether an annotation is an `Array[…]`
known_units            units that a field can have, or `None`
Subject                a component under test at one point

Names are loaded when they are first used, as in `chainrule.runtime`.
"""

from typing import TYPE_CHECKING

from chainrule._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from chainrule.runtime._component._document import Document, Field, Leaf, complete_inputs
    from chainrule.runtime._component._failures import failure_of
    from chainrule.runtime._component._isolation import PEER_MODULES, load_module
    from chainrule.runtime._component._loading import (
        COMPONENT_FILES,
        check_sources,
        read_mapping,
        split_source,
    )
    from chainrule.runtime._component._observation import keep_output
    from chainrule.runtime._component._schemas import fit_abstract
    from chainrule.runtime._derivatives._derive import product_from_jacobian
    from chainrule.runtime._derivatives._layout import Layout
    from chainrule.runtime._residuals import reuse_residuals
    from chainrule.runtime._runs import Run, log_handler, outside_config
    from chainrule.runtime._schema import array_leaves, is_array_type
    from chainrule.runtime._schema._array import ArrayFlags
    from chainrule.runtime._schema._plain import to_plain
    from chainrule.runtime._schema._spec import known_units
    from chainrule.runtime.testing._subject import Subject

__all__ = [
    "COMPONENT_FILES",
    "PEER_MODULES",
    "ArrayFlags",
    "Document",
    "Field",
    "Layout",
    "Leaf",
    "Run",
    "Subject",
    "array_leaves",
    "check_sources",
    "complete_inputs",
    "failure_of",
    "fit_abstract",
    "is_array_type",
    "keep_output",
    "known_units",
    "load_module",
    "log_handler",
    "outside_config",
    "product_from_jacobian",
    "read_mapping",
    "reuse_residuals",
    "split_source",
    "to_plain",
]

_HOMES = {
    "_component._document": "Document Field Leaf complete_inputs",
    "_component._isolation": "load_module PEER_MODULES",
    "_component._loading": "COMPONENT_FILES check_sources read_mapping split_source",
    "_component._failures": "failure_of",
    "_component._observation": "keep_output",
    "_component._schemas": "fit_abstract",
    "_runs": "Run log_handler outside_config",
    "_residuals": "reuse_residuals",
    "_derivatives._derive": "product_from_jacobian",
    "_derivatives._layout": "Layout",
    "_schema": "array_leaves is_array_type",
    "_schema._array": "ArrayFlags",
    "_schema._plain": "to_plain",
    "_schema._spec": "known_units",
    "testing._subject": "Subject",
}
__getattr__, __dir__ = _lazy_names(
    __name__,
    {name: f"chainrule.runtime.{home}" for home, names in _HOMES.items() for name in names.split()},
)
