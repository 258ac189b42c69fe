"""How nested data with arrays becomes bytes and comes back: one implementation for everybody.

Single arrays travel as JSON objects (`encode_array`, `decode_array`), whole bodies in one of the formats
`json`, `json+base64`, `json+binref` or `application/vnd.chainrule.frames`. Decoders trust nothing: sizes
are checked before allocation, files and addresses against `Grants`, nesting and counts against `Limits`.
"""

from chainrule.runtime._codec._arrays import Encoding, decode_array, encode_array, is_encoded_array
from chainrule.runtime._codec._binref_array import BinrefArray
from chainrule.runtime._codec._binref_writing import BinrefWriter
from chainrule.runtime._codec._dtypes import DTYPE_NAMES
from chainrule.runtime._codec._grants import Grants
from chainrule.runtime._codec._limits import DEFAULT_LIMITS, Limits

__all__ = [
    "DEFAULT_LIMITS",
    "DTYPE_NAMES",
    "BinrefArray",
    "BinrefWriter",
    "Encoding",
    "Grants",
    "Limits",
    "decode_array",
    "encode_array",
    "is_encoded_array",
]
