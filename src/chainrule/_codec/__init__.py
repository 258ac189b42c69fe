"""Nested data with arrays as bytes, and back: one implementation for server, client and command line.

Single arrays travel as JSON objects (`encode_array`, `decode_array`), whole bodies in one of the formats
`json`, `json+base64`, `json+binref` or `application/vnd.chainrule.frames`. Decoders check sizes before they
allocate, files and addresses against `Grants`, nesting and counts against `Limits`. In reading order:

    _declared      dtypes, shapes and sizes: what a body may declare, within Limits
    _compression   single buffers, compressed
    _binrefs       arrays in files: references, Grants of files, reading, writing
    _arrays        one array as a JSON object
    _sparse        SparseArray, and its entries without repetition
    _json_trees    trees as JSON text, with the leaves that JSON has no form for
    _frames        the native format: a JSON header and raw buffers
    _bodies        all formats: negotiation, writing, reading
"""

from chainrule._codec._arrays import (
    DeviceArray,
    Encoding,
    decode_array,
    decode_tree,
    encode_array,
    is_encoded_array,
)
from chainrule._codec._binrefs import BinrefArray, BinrefWriter, Grants
from chainrule._codec._bodies import (
    FORMATS,
    Negotiated,
    NotAcceptableError,
    decode_body,
    encode_body,
    expand_body,
    media_type_of,
    negotiate,
)
from chainrule._codec._declared import (
    DEFAULT_LIMITS,
    DTYPE_NAMES,
    MASKED,
    TRUSTING_LIMITS,
    WHY_MASKED,
    Limits,
    dtype_from_name,
    dtype_generality,
    has_masked,
)
from chainrule._codec._frames import (
    FRAMES_MEDIA_TYPE,
    decode_frames,
    encode_frames,
)
from chainrule._codec._json_trees import parse_json
from chainrule._codec._sparse import SparseArray, flat_entries

__all__ = [
    "DEFAULT_LIMITS",
    "DTYPE_NAMES",
    "FORMATS",
    "FRAMES_MEDIA_TYPE",
    "MASKED",
    "TRUSTING_LIMITS",
    "WHY_MASKED",
    "BinrefArray",
    "BinrefWriter",
    "DeviceArray",
    "Encoding",
    "Grants",
    "Limits",
    "Negotiated",
    "NotAcceptableError",
    "SparseArray",
    "decode_array",
    "decode_body",
    "decode_frames",
    "decode_tree",
    "dtype_from_name",
    "dtype_generality",
    "encode_array",
    "encode_body",
    "encode_frames",
    "expand_body",
    "flat_entries",
    "has_masked",
    "is_encoded_array",
    "media_type_of",
    "negotiate",
    "parse_json",
]
