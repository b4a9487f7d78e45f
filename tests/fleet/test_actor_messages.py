"""How bytes are packed for the way, and what is refused at its end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anygpu.fleet import messages
from anygpu.fleet.messages import MOST_IN_PARTS, PART, Bytes, Part


def _arrays(sizes: list[int]) -> list[Bytes]:
    random = np.random.default_rng(len(sizes))
    return [random.integers(0, 256, size, np.uint8) for size in sizes]


SIZES = st.lists(
    st.one_of(st.integers(1, 300), st.sampled_from([PART - 1, PART, PART + 1, 3 * PART, 5 * PART + 7])), max_size=6
)


@given(SIZES)
def test_what_is_packed_comes_out_again(sizes: list[int]) -> None:
    arrays = _arrays(sizes)
    parts = messages.packed(arrays)
    assert len(parts) == messages.parts_of(sizes)
    assert all(len(part) <= PART for part in parts)
    assert [each.tolist() for each in messages.unpacked(sizes, parts)] == [each.tolist() for each in arrays]
    targets = [np.zeros(size, np.uint8) for size in sizes]
    messages.unpack_into(targets, parts)
    assert all(np.array_equal(target, each) for target, each in zip(targets, arrays, strict=True))


def test_more_than_one_message_may_have_goes_array_by_array() -> None:
    arrays = _arrays([MOST_IN_PARTS, 100])
    parts = messages.packed(arrays)
    assert [len(part) for part in parts] == [MOST_IN_PARTS, 100]
    found = messages.unpacked([MOST_IN_PARTS, 100], parts)
    assert all(np.array_equal(one, other) for one, other in zip(found, arrays, strict=True))


def test_arrays_begin_where_a_device_can_read_them() -> None:
    _, second = messages.unpacked([3, 128], messages.packed(_arrays([3, 128])))
    assert second.ctypes.data % 16 == 0


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([10], []),
        ([10], [b"123"]),
        ([10], [bytes(10), b""]),
        ([PART + 1], [bytes(PART + 1)]),
        ([PART, PART], [bytes(PART - 1), bytes(PART + 1)]),
        ([1 << 60], [b"1"]),
        ([MOST_IN_PARTS + 1], [b"1"]),
        ([-5], [b"1"]),
    ],
)
def test_sizes_that_are_not_true_are_refused_before_memory_is_taken(sizes: list[int], parts: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"parts|size|negative"):
        messages.unpacked(sizes, parts)


class Patient(list[Part]):
    """Parts that are not looked at for ever."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        assert self.looks < 100, "it is copied without end"
        return super().__getitem__(index)


@pytest.mark.parametrize("parts", [[b""], [b"123"], [b"123", b"4567890"]])
def test_parts_that_are_shorter_than_was_announced_are_refused(parts: list[Part]) -> None:
    """They were copied for ever: no piece was left, and the array was not full."""
    with pytest.raises(ValueError, match="shorter than what was announced"):
        messages.unpack_into([np.zeros(10, np.uint8)], Patient(parts))
