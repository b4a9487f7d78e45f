"""Kernels made ready (shader modules, layouts, pipelines), and the memory that they are given, in bind groups.

`Pipelines` compiles texts and keeps pipelines by text and layout. `BindGroups` keeps the bind groups of launches that
repeat, until one of their blocks goes. `Numbers` is a table of the numbers that launches pass, at dynamic offsets.
"""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from typing import Any

import wgpu

from anygpu.base.lru import LRUCache
from anygpu.engines.codegen.kernel import Kernel, Own
from anygpu.engines.codegen.target import Target
from anygpu.engines.driver import Extent
from anygpu.engines.webgpu.device import classify, innermost
from anygpu.engines.webgpu.submission import (
    careful_seconds,
)
from anygpu.errors import InvalidKernel, InvalidProgram, TooBig, Unsupported

# -- what has to stand before a kernel for some compilers of WGSL, and must not for others
#
# The standard asks for `enable subgroups;` before a kernel that uses them, and Tint refuses the kernel without it. naga
# 29 has subgroups, and refuses the directive.


SUBGROUPS = "enable subgroups;"


_USED = re.compile(r"\bsubgroup[A-Z_]\w*")


_ENABLED = re.compile(r"^[ \t]*enable[ \t]+subgroups[ \t]*;", re.MULTILINE)


def with_subgroups_enabled(source: str) -> str:
    """As the standard has it: the directive comes first where a kernel uses subgroups."""
    if _ENABLED.search(source) is not None or _USED.search(source) is None:
        return source
    return f"{SUBGROUPS}\n{source}"


def without_subgroups_enabled(source: str) -> str:
    """Blanks take its place: a compiler's messages still tell the right line and column."""
    return _ENABLED.sub(lambda match: " " * len(match.group()), source)


#: Pipelines that are kept for kernels to come; one that is in use stays alive beyond that.
KEPT_PIPELINES = 2048


_FIRST_GROUP = "first_group"


class BindingLayout:
    """The kinds of a kernel's parameters. Kernels of equal kinds share one, and with it their bind groups."""

    __slots__ = ("buffers", "granule", "native", "number_bytes", "pipeline_layout")

    def __init__(self, device: Any, kinds: tuple[str, ...], numbers: int, granule: int) -> None:
        """The layout of a kernel's bindings: buffers of these kinds, then its numbers with a dynamic offset.

        Buffers are bound in multiples of `granule` bytes.
        """
        entries: list[dict[str, Any]] = [
            {"binding": position, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for position, kind in enumerate(kinds)
        ]
        if numbers:
            block = {"type": "uniform", "has_dynamic_offset": True}
            entries.append({"binding": len(kinds), "visibility": wgpu.ShaderStage.COMPUTE, "buffer": block})
        self.buffers = len(kinds)
        self.granule = granule
        self.number_bytes = -(-4 * numbers // 16) * 16
        self.native = device.create_bind_group_layout(entries=entries)
        self.pipeline_layout = device.create_pipeline_layout(bind_group_layouts=[self.native])


class BuiltKernel:
    """A kernel that can be launched."""

    __slots__ = ("careful", "first_group", "grid", "kernel", "layout", "pipeline")

    def __init__(self, kernel: Kernel, layout: BindingLayout, pipeline: Any, grid: tuple[int, ...]) -> None:
        """A kernel with its pipeline. `careful` is how many seconds it may take while its pace is unknown."""
        self.kernel = kernel
        self.layout = layout
        self.pipeline = pipeline
        self.grid = grid
        self.careful = careful_seconds(kernel)
        #: Where among the numbers the first group is; `None` when the kernel only runs whole.
        self.first_group = kernel.numbers.index(_FIRST_GROUP) if _FIRST_GROUP in kernel.numbers else None

    def starting_at(self, first: int, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers for the groups from `first` on."""
        if self.first_group is None:
            return numbers
        place = self.first_group
        return (*numbers[:place], numbers[place] + first, *numbers[place + 1 :])


def grid_of(groups: int, fold: int) -> tuple[int, int]:
    """Columns and rows: more groups than fit into one dimension fill whole rows."""
    return (groups, 1) if groups <= fold else (fold, -(-groups // fold))


class Pipelines:
    """Builds kernels, and remembers what it built."""

    def __init__(self, device: Any, device_id: str, target: Target) -> None:
        """Compiles kernels for a device. Pipelines are kept by their texts, the last `KEPT_PIPELINES` of them."""
        self._device = device
        self._device_id = device_id
        self._target = target
        self._layouts: dict[tuple[tuple[str, ...], int, int], BindingLayout] = {}
        self._pipelines: LRUCache[Any] = LRUCache(KEPT_PIPELINES)
        self._enables_subgroups: bool | None = None
        self.compilations = 0

    @property
    def pipelines(self) -> int:
        return len(self._pipelines)

    @property
    def fold(self) -> int:
        return self._target.groups_per_dimension or 65535

    def build(self, kernel: Kernel) -> BuiltKernel:
        """The kernel with its pipeline. Raises `Unsupported` for kernels beyond the device's limits."""
        self._refuse_what_never_fits(kernel)
        layout = self._layout(kernel)
        pipeline = self._pipelines.get((kernel.source, kernel.name, layout), lambda: self._compile(kernel, layout))
        return BuiltKernel(kernel, layout, pipeline, kernel.grid or grid_of(kernel.groups, self.fold))

    def _layout(self, kernel: Kernel) -> BindingLayout:
        """The layout of a kernel's bindings, shared by all kernels of the same kind."""
        kinds = tuple("read-only-storage" if each.access == "read" else "storage" for each in kernel.bindings)
        # Ours read the last elements together; a user's kernel must not see what lies behind an array.
        key = kinds, len(kernel.numbers), GRANULE if kernel.own is None else 4
        if key not in self._layouts:
            self._layouts[key] = BindingLayout(self._device, *key)
        return self._layouts[key]

    def _compile(self, kernel: Kernel, layout: BindingLayout) -> Any:
        """The pipeline of a kernel.

        Raises `InvalidKernel` for users' kernels that are refused, `InvalidProgram` for ours.
        """
        if kernel.own is not None:
            self._look_at(kernel.own)
        try:
            module = self._module(kernel.name, kernel.source)
            pipeline = self._device.create_compute_pipeline(
                label=kernel.name,
                layout=layout.pipeline_layout,
                compute={"module": module, "entry_point": kernel.name},
            )
        except wgpu.GPUError as error:
            if classify(error, self._device_id) is not None:
                raise
            if kernel.own is not None:
                # The user's own text is good, so what is wrong is no matter of a place in it.
                raise InvalidKernel(kernel.own.title, f"{self._device_id} refuses it: {innermost(error)}") from error
            raise InvalidProgram(
                f"the kernel {kernel.name} does not compile for {self._device_id}:\n{innermost(error)}"
            ) from error
        self.compilations += 1
        return pipeline

    def _module(self, label: str, source: str) -> Any:
        """The shader module of a source, with subgroups enabled as this implementation wants to have it written."""
        standard, naga = with_subgroups_enabled(source), without_subgroups_enabled(source)
        if standard != naga:
            if self._enables_subgroups is None:
                self._enables_subgroups = self._takes(f"{SUBGROUPS}\n")
            source = standard if self._enables_subgroups else naga
        return self._device.create_shader_module(label=label, code=source)

    def _takes(self, source: str) -> bool:
        """Whether the device compiles a source. A lost device is raised."""
        try:
            self._device.create_shader_module(code=source)
        except wgpu.GPUError as error:
            if classify(error, self._device_id) is not None:
                raise
            # wgpu's frames keep the error, which would keep them, and all frames above with their buffers.
            error.__traceback__ = None
            return False
        return True

    def _look_at(self, own: Own) -> None:
        """Compile a user's text as it is, so that a complaint about it has its place in it."""
        try:
            self._module(own.title, own.source)
        except wgpu.GPUError as error:
            if classify(error, self._device_id) is not None:
                raise
            raise complaint_of_naga(own.title, str(error)) from error

    def _refuse_what_never_fits(self, kernel: Kernel) -> None:
        """Raise `Unsupported` for more buffers, invocations or groups than the device has."""
        most = self._target
        for what, asked, limit in (
            ("buffers", len(kernel.bindings), most.bindings),
            ("invocations in a group", kernel.group_size, most.group_limit),
            ("groups", 0 if kernel.grid else kernel.groups, self.fold * self.fold),
            ("groups in one dimension", max(kernel.grid or (0,)), self.fold),
        ):
            if asked > limit:
                raise Unsupported(
                    f"room for the {asked:,} {what} of the kernel {kernel.name}; its limit is {limit:,}",
                    self._device_id,
                    instead="Compile the program for this device's own limits, or use another device.",
                )


#: naga draws the place under its message: "┌─ wgsl:3:11".
_NAGA_PLACE = re.compile(r"┌─ [^\n]*?:(\d+):(\d+)")
_NAGA_HEAD = re.compile(r"^Shader (?:'[^\n]*?' )?(?:parsing|validation) error: ", re.MULTILINE)
#: The longest message that is passed on, in characters.
_MOST_WORDS = 4000


def complaint_of_naga(title: str, words: str) -> InvalidKernel:
    """Return the error with what naga says of a user's text, and the place in it where it names one."""
    head = _NAGA_HEAD.search(words)
    said = (words[head.end() :] if head is not None else words).rstrip()[:_MOST_WORDS]
    place = _NAGA_PLACE.search(said)
    if place is None:
        return InvalidKernel(title, said)
    return InvalidKernel(title, said, line=int(place[1]), column=int(place[2]))


#: Bind groups that are kept. A program needs one for each kernel and each set of buffers that it meets.
KEPT_BIND_GROUPS = 4096


#: Buffers are whole multiples of the widest element that kernels read, so that the last one is never cut off.
GRANULE = 16


BindGroupKey = tuple[BindingLayout, tuple[Extent, ...]]


class WebGPUBlock:
    """A buffer on the device. Without `buffer`, it was given back."""

    __slots__ = ("buffer", "keys", "nbytes")

    def __init__(self, buffer: Any, nbytes: int) -> None:
        """A buffer, and the keys of the bind groups that use it."""
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
        """Bind groups by layout and extents, the last `KEPT_BIND_GROUPS` of them; `numbers` is bound with each."""
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
        """The bind group of extents, kept until one of its blocks goes."""
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
        """Drop a bind group, and its key at each of its blocks."""
        self._groups.pop(key, None)
        for extent in key[1]:
            extent.block.keys.discard(key)

    def _make(self, layout: BindingLayout, extents: tuple[Extent, ...]) -> Any:
        """A new bind group. Raises `ValueError` for another number of buffers than the kernel has."""
        if len(extents) != layout.buffers:
            raise ValueError(f"a kernel of {layout.buffers} buffers was given {len(extents)}.")
        entries = [
            {"binding": position, "resource": self._resource(extent, layout.granule)}
            for position, extent in enumerate(extents)
        ]
        if layout.number_bytes:
            numbers = {"buffer": self._numbers, "offset": 0, "size": layout.number_bytes}
            entries.append({"binding": layout.buffers, "resource": numbers})
        return self._device.create_bind_group(layout=layout.native, entries=entries)

    def _resource(self, extent: Extent, granule: int) -> dict[str, Any]:
        """The part of a buffer to bind. Raises `TooBig` above the limit of a binding."""
        buffer = buffer_of(extent)
        if extent.offset % self._alignment:
            raise ValueError(f"byte {extent.offset} cannot be bound: {self._device_id} needs {self._alignment}'s.")
        if extent.nbytes > self._limit:
            raise TooBig(self._device_id, extent.nbytes, self._limit)
        # An empty array needs some memory too.
        size = min(round_up(max(extent.nbytes, 1), granule), extent.block.nbytes - extent.offset, self._limit)
        return {"buffer": buffer, "offset": extent.offset, "size": size}


# -- the numbers that kernels take beside their buffers: each set is written to the device once and found again
#
# Most launches repeat numbers that are there already, so that in the steady state nothing is written at all.


#: How much is kept on the device; when it is full, all of it is forgotten and filled again.
TABLE_BYTES = 1 << 20


class Numbers:
    """One uniform buffer, as a table from numbers to the offset where they are."""

    def __init__(self, device: Any, nbytes: int = TABLE_BYTES) -> None:
        """A table of the numbers that launches pass, mirrored on the host.

        `generation` counts how often it began anew.
        """
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
