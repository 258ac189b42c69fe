"""Memory into which a caller copies large answers is used again, and never while an array lies in it."""

import copy
import gc

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given, settings

from chainrule._same_host import SegmentPool

N = 1 << 21  # bytes of a large answer

KEEP = {
    "it": lambda array: array,
    "slice": lambda array: array[5:9],
    "reshaped": lambda array: array.reshape(2, -1)[1, ::3],
    "other dtype": lambda array: array.view(np.float64)[7:],
    "transposed": lambda array: array.reshape(64, -1).T,
    "strided": lambda array: np.lib.stride_tricks.as_strided(array, (9,), (100,)),
    "matrix": lambda array: array.view(np.matrix),
    "record": lambda array: array[:64].view([("a", "f8"), ("b", "i8")])["b"],
    "base": lambda array: np.frombuffer(array[3:].base, np.uint8),
    "base of its base": lambda array: np.frombuffer(array[3:].base.base, np.uint8),
    "memoryview": lambda array: memoryview(array)[10:],
    "memoryview of a slice": lambda array: memoryview(array[10:]),
    "frombuffer": lambda array: np.frombuffer(memoryview(array), np.int32),
    "ctypes": lambda array: np.ctypeslib.as_ctypes(array),
    "dlpack": lambda array: np.from_dlpack(array),
    "torch": lambda array: torch.from_numpy(array)[3:],
    "torch by dlpack": lambda array: torch.from_dlpack(array).view(2, -1)[1],
    "numpy of torch": lambda array: torch.from_numpy(array).numpy()[4:],
    "copied shallowly": lambda array: copy.copy([array[2:]]),
    "in a cycle": lambda array: _cycle(array),
}


def _cycle(array):
    node = [array]
    node.append(node)
    return node


def numbers(kept):
    while isinstance(kept, list):
        kept = kept[0]
    return bytes(memoryview(np.asarray(kept)).tobytes())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(KEEP)), st.integers(0, 3)), max_size=12))
def test_what_is_kept_of_an_answer_does_not_change(steps):
    """Some answers are kept in some way, the others are dropped; their memory goes to the next ones."""
    memory, kept = SegmentPool().answers, []
    for number, (way, forget) in enumerate(steps):
        answer = memory.copy(memoryview(bytes([number + 1]) * N))
        mine = KEEP[way](answer)
        kept.append((mine, numbers(mine)))
        del answer, mine
        del kept[: len(kept) - 3 + forget]
        for each, before in kept:
            assert numbers(each) == before


def test_memory_is_used_again():
    memory = SegmentPool().answers
    source = memoryview(bytes(N))
    address = memory.copy(source).ctypes.data
    gc.collect()
    again = memory.copy(source)
    assert again.ctypes.data == address
    assert memory.copy(source).ctypes.data != address
    assert again.flags.writeable
