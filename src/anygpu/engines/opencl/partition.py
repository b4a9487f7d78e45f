"""Parts of a device as devices of their own: to keep processors free, and to try out several devices on one machine.

`ANYGPU_OPENCL_SUBDEVICES=2` cuts every device that can be cut into two equal parts; `3,1` takes parts of three and of
one compute unit and leaves the rest alone, and `3,` takes only one of three. The parts `opencl:0.0`, `opencl:0.1`, …
stand in the list *instead of* the whole device, because they are the same processors. Without the variable no device
is cut.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyopencl as cl

from anygpu.errors import InvalidOption

VARIABLE = "ANYGPU_OPENCL_SUBDEVICES"


class Partition(NamedTuple):
    """Either a number of equal parts, or the compute units of each part."""

    equal: int | None = None
    counts: tuple[int, ...] = ()

    def units_of(self, compute_units: int) -> tuple[int, ...] | None:
        """The compute units of each part; `None` when the device has too few."""
        counts = self.counts if self.equal is None else (compute_units // self.equal,) * self.equal
        return counts if all(counts) and sum(counts) <= compute_units else None


def read_partition(text: str) -> Partition | None:
    """What the variable says; `None` when it asks for whole devices."""
    words = [word.strip() for word in text.split(",")]
    if words in ([""], ["0"]):
        return None
    listed = len(words) > 1
    if listed and not words[-1]:
        words.pop()
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise InvalidOption(
            f"{VARIABLE} is a number of equal parts, as 2, or the compute units of each, as 3,1 or 3,; got {text!r}."
        )
    numbers = tuple(int(word) for word in words)
    return Partition(counts=numbers) if listed else Partition(equal=numbers[0])


def can_be_cut(device: Any) -> bool:
    kinds = device.partition_properties
    return int(device.partition_max_sub_devices) > 0 and cl.device_partition_property.BY_COUNTS in kinds


def cut(device: Any, units: tuple[int, ...]) -> list[Any]:
    return list(device.create_sub_devices([cl.device_partition_property.BY_COUNTS, *units]))
