"""How nested data with arrays becomes bytes and comes back: one implementation for everybody.

Single arrays travel as JSON objects (`encode_array`, `decode_array`), whole bodies in one of the formats
`json`, `json+base64`, `json+binref` or `application/vnd.chainrule.frames`. Decoders trust nothing: sizes
are checked before allocation, files and addresses against `Grants`, nesting and counts against `Limits`.
"""

from chainrule._codec._arrays import Encoding, decode_array, encode_array, is_encoded_array
from chainrule._codec._binref_array import BinrefArray
from chainrule._codec._binref_writing import BinrefWriter
from chainrule._codec._bodies import FORMATS, decode_body, encode_body, media_type_of
from chainrule._codec._dtypes import DTYPE_NAMES, dtype_from_name
from chainrule._codec._frames_layout import FRAMES_MEDIA_TYPE
from chainrule._codec._frames_reading import decode_frames, frames_length
from chainrule._codec._frames_writing import Frames, encode_frames
from chainrule._codec._grants import Grants
from chainrule._codec._limits import (
    DEFAULT_LIMITS,
    TRUSTING_LIMITS,
    Limits,
    expansion_too_large,
)
from chainrule._codec._negotiation import Negotiated, NotAcceptableError, negotiate
from chainrule._codec._sparse import SparseArray

__all__ = [
    "DEFAULT_LIMITS",
    "DTYPE_NAMES",
    "FORMATS",
    "FRAMES_MEDIA_TYPE",
    "TRUSTING_LIMITS",
    "BinrefArray",
    "BinrefWriter",
    "Encoding",
    "Frames",
    "Grants",
    "Limits",
    "Negotiated",
    "NotAcceptableError",
    "SparseArray",
    "decode_array",
    "decode_body",
    "decode_frames",
    "dtype_from_name",
    "encode_array",
    "encode_body",
    "encode_frames",
    "expansion_too_large",
    "frames_length",
    "is_encoded_array",
    "media_type_of",
    "negotiate",
]
