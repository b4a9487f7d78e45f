"""The numbers that kernels take beside their buffers: each set is written to the device once and found again.

Most launches repeat numbers that are there already, so that in the steady state nothing is written at all.
"""

from __future__ import annotations

import struct
from typing import Any

import wgpu

from anygpu.engines.webgpu.bind_groups import round_up

#: How much is kept on the device; when it is full, all of it is forgotten and filled again.
TABLE_BYTES = 1 << 20


class Numbers:
    """One uniform buffer, as a table from numbers to the offset where they are."""

    def __init__(self, device: Any, nbytes: int = TABLE_BYTES) -> None:
        self._device = device
        self._alignment = int(device.limits["min-uniform-buffer-offset-alignment"])
        self._mirror = bytearray(nbytes)
        self._places: dict[tuple[int, ...], int] = {}
        #: Bytes that are taken, and how many of them the device has.
        self._taken = 0
        self._written = 0
        #: How often everything was forgotten: places are good for one generation.
        self.generation = 0
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST | wgpu.BufferUsage.COPY_SRC
        self.buffer: Any = device.create_buffer(size=nbytes, usage=usage)

    def place(self, numbers: tuple[int, ...]) -> int | None:
        """Where they are, or will be after `flush`; `None` when there is no room before `clear`."""
        place = self._places.get(numbers)
        if place is not None:
            return place
        size = round_up(4 * len(numbers), 16)
        if self._taken + size > len(self._mirror):
            return None
        place = self._taken
        struct.pack_into(f"<{len(numbers)}I", self._mirror, place, *numbers)
        self._places[numbers] = place
        self._taken = round_up(place + size, self._alignment)
        return place

    def flush(self) -> None:
        """Send what is new. The queue writes it after everything submitted before, and before what follows."""
        if self._taken > self._written:
            end = min(self._taken, len(self._mirror))
            new = memoryview(self._mirror)[self._written : end]
            self._device.queue.write_buffer(self.buffer, self._written, new)
            self._written = self._taken

    def clear(self) -> None:
        """Forget everything. Launches that are encoded but not yet submitted must not need it any more."""
        self._places.clear()
        self.generation += 1
        self._taken = self._written = 0
