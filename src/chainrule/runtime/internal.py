"""What other packages of this project use of `runtime`; no promise to users."""

from chainrule.runtime._component._definition import hash_parts
from chainrule.runtime._component._document import (
    SIDES,
    Field,
    Side,
    capabilities_of,
    differentiable_of,
    endpoints_of,
    fields_html,
    fields_of,
    full_name,
    summary_html,
    summary_text,
)
from chainrule.runtime._component._failures import failure_of
from chainrule.runtime._component._isolation import PEER_MODULES, load_module
from chainrule.runtime._component._loading import (
    check_sources,
    check_syntax,
    file_in,
    load_component,
)
from chainrule.runtime._component._local import LocalComponent
from chainrule.runtime._component._observation import copied_to, new_logs
from chainrule.runtime._component._schemas import to_plain
from chainrule.runtime._config import ComponentConfig, ReferenceKind
from chainrule.runtime._content_store import SharedFolder, content_name
from chainrule.runtime._derivatives import product_from_jacobian
from chainrule.runtime._derivatives._derive import batched_product
from chainrule.runtime._endpoints import (
    BATCHED,
    DERIVATIVES,
    ENDPOINTS,
    HVP,
    JACOBIAN,
    JVP,
    TAGGED,
    VJP,
    AsyncEndpointMethods,
    CallingBack,
    DerivativeKind,
    EndpointMethods,
)
from chainrule.runtime._own_arrays import own_copy
from chainrule.runtime._progress import is_heard, listening, progress, unheard
from chainrule.runtime._residuals import content_digest, reuse_residuals
from chainrule.runtime._runs import Run, checked_run_id, current_run, log_handler
from chainrule.runtime._schema import (
    ArraySpec,
    array_leaves,
    describe_array,
    describe_value,
    is_array_type,
)
from chainrule.runtime._schema._json_schema import ArrayJsonSchema
from chainrule.runtime._schema._leaves import DimensionTable, enter_sizes, unwrap
from chainrule.runtime._schema._problems import dtype_mismatch
from chainrule.runtime._schema._spec import PEER_DTYPES, numpy_dtype
from chainrule.runtime._schema._validation import check_shape, is_tracer
from chainrule.runtime.testing._subject import Subject

__all__ = [
    "BATCHED",
    "DERIVATIVES",
    "ENDPOINTS",
    "HVP",
    "JACOBIAN",
    "JVP",
    "PEER_DTYPES",
    "PEER_MODULES",
    "SIDES",
    "TAGGED",
    "VJP",
    "ArrayJsonSchema",
    "ArraySpec",
    "AsyncEndpointMethods",
    "CallingBack",
    "ComponentConfig",
    "DerivativeKind",
    "DimensionTable",
    "EndpointMethods",
    "Field",
    "LocalComponent",
    "ReferenceKind",
    "Run",
    "SharedFolder",
    "Side",
    "Subject",
    "array_leaves",
    "batched_product",
    "capabilities_of",
    "check_shape",
    "check_sources",
    "check_syntax",
    "checked_run_id",
    "content_digest",
    "content_name",
    "copied_to",
    "current_run",
    "describe_array",
    "describe_value",
    "differentiable_of",
    "dtype_mismatch",
    "endpoints_of",
    "enter_sizes",
    "failure_of",
    "fields_html",
    "fields_of",
    "file_in",
    "full_name",
    "hash_parts",
    "is_array_type",
    "is_heard",
    "is_tracer",
    "listening",
    "load_component",
    "load_module",
    "log_handler",
    "new_logs",
    "numpy_dtype",
    "own_copy",
    "product_from_jacobian",
    "progress",
    "reuse_residuals",
    "summary_html",
    "summary_text",
    "to_plain",
    "unheard",
    "unwrap",
]
