"""Memory as kernels are given it: blocks, and bind groups that are made once for the same extents."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Any

import wgpu

from anygpu.codegen.target import Target
from anygpu.engines.driver import Extent
from anygpu.engines.webgpu.pipelines import BindingLayout
from anygpu.errors import TooBig

#: Bind groups that are kept. A program needs one for each kernel and each set of buffers that it meets.
KEPT_BIND_GROUPS = 4096

#: Buffers are whole multiples of the widest element that kernels read, so that the last one is never cut off.
GRANULE = 16

BindGroupKey = tuple[BindingLayout, tuple[Extent, ...]]


class WebGPUBlock:
    """A buffer on the device. Without `buffer`, it was given back."""

    __slots__ = ("buffer", "keys", "nbytes")

    def __init__(self, buffer: Any, nbytes: int) -> None:
        self.buffer = buffer
        self.nbytes = nbytes
        #: The keys of the bind groups that have it.
        self.keys: set[BindGroupKey] = set()


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def buffer_of(extent: Extent) -> Any:
    """The extent's buffer. Submitting one that was given back would end the process, so it is looked at first."""
    block: WebGPUBlock = extent.block
    if block.buffer is None:
        raise ValueError("a block was used after it had been released.")
    if extent.offset < 0 or extent.nbytes < 0 or extent.offset + extent.nbytes > block.nbytes:
        raise ValueError(
            f"bytes {extent.offset} to {extent.offset + extent.nbytes} are not inside a block of {block.nbytes}."
        )
    return block.buffer


class BindGroups:
    """Keeps bind groups by layout and extents, and forgets them with their blocks."""

    def __init__(self, device: Any, device_id: str, target: Target, alignment: int, numbers: Any) -> None:
        self._device = device
        self._device_id = device_id
        self._limit = target.binding_bytes
        self._alignment = alignment
        #: The buffer that every kernel's numbers are in.
        self._numbers = numbers
        self._groups: OrderedDict[BindGroupKey, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, layout: BindingLayout, extents: tuple[Extent, ...]) -> Any:
        # A hit needs no look at the blocks: one that was given back has taken its bind groups along.
        key = (layout, extents)
        group = self._groups.get(key)
        if group is not None:
            self._groups.move_to_end(key)
            return group
        group = self._make(layout, extents)
        self._groups[key] = group
        for extent in extents:
            extent.block.keys.add(key)
        if len(self._groups) > KEPT_BIND_GROUPS:
            self._forget(next(iter(self._groups)))
        return group

    def forget(self, block: WebGPUBlock) -> None:
        for key in list(block.keys):
            self._forget(key)

    def _forget(self, key: BindGroupKey) -> None:
        self._groups.pop(key, None)
        for extent in key[1]:
            extent.block.keys.discard(key)

    def _make(self, layout: BindingLayout, extents: tuple[Extent, ...]) -> Any:
        if len(extents) != layout.buffers:
            raise ValueError(f"a kernel of {layout.buffers} buffers was given {len(extents)}.")
        entries = [{"binding": position, "resource": self._resource(extent)} for position, extent in enumerate(extents)]
        if layout.number_bytes:
            numbers = {"buffer": self._numbers, "offset": 0, "size": layout.number_bytes}
            entries.append({"binding": layout.buffers, "resource": numbers})
        return self._device.create_bind_group(layout=layout.native, entries=entries)

    def _resource(self, extent: Extent) -> dict[str, Any]:
        buffer = buffer_of(extent)
        if extent.offset % self._alignment:
            raise ValueError(f"byte {extent.offset} cannot be bound: {self._device_id} needs {self._alignment}'s.")
        if extent.nbytes > self._limit:
            raise TooBig(self._device_id, extent.nbytes, self._limit)
        # Whole granules, so that a kernel may read the last elements together; an empty array needs some memory too.
        size = min(round_up(max(extent.nbytes, 1), GRANULE), extent.block.nbytes - extent.offset, self._limit)
        return {"buffer": buffer, "offset": extent.offset, "size": size}


# -- the numbers that kernels take beside their buffers: each set is written to the device once and found again
#
# Most launches repeat numbers that are there already, so that in the steady state nothing is written at all.


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
