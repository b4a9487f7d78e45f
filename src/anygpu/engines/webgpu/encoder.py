"""Commands written down as the library wants them, in as few passes as possible, and bytes between host and device."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import wgpu

from anygpu.engines.driver import Bytes, Clear, Command, Dispatch, Move
from anygpu.engines.webgpu.pipelines import BindGroups, BuiltKernel, Numbers, buffer_of, grid_of, round_up
from anygpu.engines.webgpu.submission import (
    Gate,
    GridPart,
    NativeCalls,
    NativeClear,
    NativeCopy,
    NativeLaunch,
    NativeStep,
    Replay,
    Stopwatch,
)

# -- commands written down as the library wants them
#
# As few passes as possible, and timestamps around them.


BLOCK_USAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST

#: A command, and which of its groups; `None` for all of it.
CommandStep = tuple[Command, GridPart | None]


class Encoder:
    """Turns commands into submissions: one for each call of `submit`, more only when the numbers' table is full."""

    def __init__(
        self,
        device: Any,
        groups: BindGroups,
        numbers: Numbers,
        stopwatch: Stopwatch | None,
        fold: int,
        gate: Gate,
    ) -> None:
        """Encodes commands for a device. `fold` is the most groups in one dimension; `gate` submits."""
        self._device = device
        self._groups = groups
        self._numbers = numbers
        self._stopwatch = stopwatch
        self._fold = fold
        self._gate = gate
        self._encoder: Any = None
        #: The open pass and its pipeline. Consecutive launches share a pass, in which the device keeps their order.
        self._pass: Any = None
        self._pipeline: Any = None

    def submit(self, steps: Sequence[CommandStep], *, begins: bool = False, ends: bool = False) -> int:
        """Send the steps and return the number of dispatches. `begins` and `ends` say what the stopwatch marks here."""
        self._encoder = self._device.create_command_encoder()
        self._pass = None
        # An end mark belongs to the pass after the last copy; without such a pass, to an empty one.
        last_copy = max((place for place, step in enumerate(steps) if type(step[0]) is not Dispatch), default=-1)
        dispatches = 0
        for place, (command, part) in enumerate(steps):
            if isinstance(command, Dispatch):
                closing = ends and place > last_copy
                opened = self._launch(command, part, begins=begins, ends=closing)
                dispatches += opened
                begins = begins and not opened
                continue
            if begins:
                self._empty_pass(begins=True)
                begins = False
            self._end_pass()
            self._copy_or_clear(command)
        marked = self._pass is not None
        self._end_pass()
        if ends and self._stopwatch is not None:
            if not marked:
                self._empty_pass(begins=begins, ends=True)
            self._stopwatch.resolve(self._encoder)
        self._numbers.flush()
        self._gate.send(self._encoder)
        self._encoder = None
        return dispatches

    def replay_of(self, commands: Sequence[Command], native: NativeCalls) -> Replay | None:
        """The submission that `submit` sends for these, to repeat it; `None` where it makes something new each time."""
        steps: list[NativeStep] = []
        keep: list[Any] = []
        for command in commands:
            if not isinstance(command, Dispatch):
                step = _native_copy(command)
                if step is None:
                    return None
                steps.append(step)
                continue
            built: BuiltKernel = command.built
            if not all(built.grid):
                continue
            group = self._groups.get(built.layout, command.extents)
            place = self._numbers.place(command.numbers) if command.numbers else None
            if place is None and command.numbers:
                return None
            steps.append(native.launch(built.pipeline, group, place, built.grid))
            keep += (built.pipeline, group)
        self._numbers.flush()
        return Replay(steps, sum(isinstance(step, NativeLaunch) for step in steps), keep)

    def _launch(self, launch: Dispatch, part: GridPart | None, *, begins: bool, ends: bool) -> bool:
        """Whether there was anything to dispatch."""
        built: BuiltKernel = launch.built
        numbers: tuple[int, ...] = launch.numbers
        grid: tuple[int, ...] = built.grid
        if part is not None and part.groups != built.kernel.groups:
            numbers = built.starting_at(part.first_group, numbers)
            grid = grid_of(part.groups, self._fold)
        if not all(grid):
            return False
        group = self._groups.get(built.layout, launch.extents)
        place = self._place(numbers) if numbers else None
        if self._pass is None:
            self._begin_pass(begins=begins, ends=ends)
        if built.pipeline is not self._pipeline:
            self._pass.set_pipeline(built.pipeline)
            self._pipeline = built.pipeline
        if place is None:
            self._pass.set_bind_group(0, group)
        else:
            self._pass.set_bind_group(0, group, (place,))
        self._pass.dispatch_workgroups(*grid)
        return True

    def _place(self, numbers: tuple[int, ...]) -> int:
        """The offset of a kernel's numbers in their table; a full table is submitted and begun anew."""
        place = self._numbers.place(numbers)
        if place is None:
            # The places in use are free only after what uses them: send that, and begin again.
            self._end_pass()
            self._numbers.flush()
            self._gate.send(self._encoder)
            self._numbers.clear()
            self._encoder = self._device.create_command_encoder()
            place = self._numbers.place(numbers)
        if place is None:
            raise ValueError(f"a kernel cannot take {len(numbers)} numbers.")
        return place

    def _begin_pass(self, *, begins: bool, ends: bool) -> None:
        """Begin a compute pass, with timestamps where it is measured."""
        marks = {}
        if self._stopwatch is not None and (begins or ends):
            marks = self._stopwatch.marks(begins=begins, ends=ends)
        self._pass = self._encoder.begin_compute_pass(**marks)
        self._pipeline = None

    def _end_pass(self) -> None:
        """End the compute pass, if there is one."""
        if self._pass is not None:
            self._pass.end()
            self._pass = None

    def _empty_pass(self, *, begins: bool = False, ends: bool = False) -> None:
        self._begin_pass(begins=begins, ends=ends)
        self._end_pass()

    def _copy_or_clear(self, command: Move | Clear) -> None:
        """Encode a copy or zeros, in whole words.

        A copy within one buffer goes through another one, as WebGPU asks for.
        """
        target = command.target if isinstance(command, Move) else command.extent
        buffer = buffer_of(target)
        nbytes = round_up(target.nbytes, 4)
        if not nbytes:
            return
        if isinstance(command, Clear):
            self._encoder.clear_buffer(buffer, target.offset, nbytes)
            return
        if command.source.nbytes != target.nbytes:
            raise ValueError(f"{command.source.nbytes} bytes cannot be moved to {target.nbytes}.")
        source, offset = buffer_of(command.source), command.source.offset
        if source is buffer:
            # WebGPU copies only between different buffers. The library frees this one after the copy.
            between = self._device.create_buffer(size=nbytes, usage=BLOCK_USAGE)
            self._encoder.copy_buffer_to_buffer(source, offset, between, 0, nbytes)
            source, offset = between, 0
        self._encoder.copy_buffer_to_buffer(source, offset, buffer, target.offset, nbytes)


def _native_copy(command: Move | Clear) -> NativeStep | None:
    """As `_copy_or_clear` does it."""
    target = command.target if isinstance(command, Move) else command.extent
    buffer, nbytes = buffer_of(target), round_up(target.nbytes, 4)
    if not nbytes:
        return None
    if isinstance(command, Clear):
        return NativeClear(buffer._internal, target.offset, nbytes)
    source = buffer_of(command.source)
    if source is buffer or command.source.nbytes != target.nbytes:
        return None
    return NativeCopy(source._internal, command.source.offset, buffer._internal, target.offset, nbytes)


# -- bytes between the host and the device
#
# Uploads go through the queue's own `write_buffer`, in pieces: on lavapipe that was as fast as rings of mapped
# buffers at every size, and one call for a whole large array far slower. Downloads use mapped buffers again, since
# `read_buffer` makes one each time.


#: Bytes that are written before the device is told to begin with them.
UPLOAD_PIECE = 16 << 20

#: Downloads of more go in several batches, so many of them under way at once.
DOWNLOAD_BATCH = 32 << 20
BATCHES_UNDER_WAY = 2

#: Mapped buffers that are kept for the next download.
KEPT_BYTES = BATCHES_UNDER_WAY * DOWNLOAD_BATCH

_SMALLEST_BUFFER = 4096

#: wgpu-py's own spelling for "the copy is submitted already": without it, mapping submits an empty command first.
_READ = "READ_NOSYNC"

#: A buffer, and the first byte and number of bytes that are wanted of it.
TransferSource = tuple[Any, int, int]


class Uploads:
    """Writes in order with everything else on the queue."""

    def __init__(self, device: Any, gate: Gate, piece: int = UPLOAD_PIECE) -> None:
        """Copies to the device, at most `piece` bytes before a submission."""
        self._queue = device.queue
        self._gate = gate
        self._piece = piece

    def write(self, buffer: Any, offset: int, data: Bytes) -> None:
        """`offset` is a multiple of four; up to three zeros follow data of another length."""
        whole = data.nbytes // 4 * 4
        for begin in range(0, whole, self._piece):
            end = min(begin + self._piece, whole)
            self._queue.write_buffer(buffer, offset + begin, data[begin:end])
            self._gate.written += end - begin
            if self._gate.written >= self._piece:
                self._gate.flush()
        if whole < data.nbytes:
            last = np.zeros(4, np.uint8)
            last[: data.nbytes - whole] = data[whole:]
            self._queue.write_buffer(buffer, offset + whole, last)
            self._gate.written += 4


class TransferPiece(NamedTuple):
    """A part of the words around one source, and where it is in the mapped buffer and among these words."""

    source: int
    source_offset: int
    mapped_offset: int
    result_offset: int
    nbytes: int


def batches(spans: Sequence[tuple[int, int]], most: int) -> list[list[TransferPiece]]:
    """Spans of whole words, packed into batches of at most `most` bytes; long spans are cut.

    Mapped offsets are multiples of eight, as mapping wants them.
    """
    packed: list[list[TransferPiece]] = []
    filled = most
    for source, (offset, nbytes) in enumerate(spans):
        done = 0
        while done < nbytes:
            if filled >= most:
                packed.append([])
                filled = 0
            part = min(nbytes - done, most - filled)
            packed[-1].append(TransferPiece(source, offset + done, filled, done, part))
            done += part
            filled = round_up(filled + part, 8)
    return packed


class Downloads:
    """Reads many extents with few submissions, through mapped buffers that are used again."""

    def __init__(self, device: Any, gate: Gate, batch: int = DOWNLOAD_BATCH) -> None:
        """Copies to the host in batches of `batch` bytes; mapped buffers are kept for the next ones."""
        self._device = device
        self._gate = gate
        self._batch = batch
        self._kept: deque[Any] = deque()

    @property
    def kept_bytes(self) -> int:
        return sum(buffer.size for buffer in self._kept)

    def read(self, sources: Sequence[TransferSource]) -> list[Bytes]:
        """The bytes of sources, each in an array of its own."""
        targets = [np.empty(nbytes, np.uint8) for _, _, nbytes in sources]
        self.read_into(sources, targets)
        return targets

    def read_into(self, sources: Sequence[TransferSource], targets: Sequence[Bytes]) -> None:
        """Offsets and lengths may be odd; the device copies the words around them."""
        spans = [
            (offset // 4 * 4, round_up(offset + nbytes, 4) - offset // 4 * 4 if nbytes else 0)
            for _, offset, nbytes in sources
        ]
        under_way: deque[tuple[Any, list[TransferPiece], Any]] = deque()
        for batch in batches(spans, self._batch):
            if len(under_way) == BATCHES_UNDER_WAY:
                self._take(*under_way.popleft(), sources, targets)
            under_way.append(self._begin(batch, sources))
        while under_way:
            self._take(*under_way.popleft(), sources, targets)

    def _begin(
        self, batch: list[TransferPiece], sources: Sequence[TransferSource]
    ) -> tuple[Any, list[TransferPiece], Any]:
        """Copy pieces to a buffer that the host can map, and begin to map it."""
        total = batch[-1].mapped_offset + batch[-1].nbytes
        mapped = self._mapped_buffer(total)
        encoder = self._device.create_command_encoder()
        for piece in batch:
            buffer = sources[piece.source][0]
            encoder.copy_buffer_to_buffer(buffer, piece.source_offset, mapped, piece.mapped_offset, piece.nbytes)
        self._gate.send(encoder)
        return mapped, batch, mapped.map_async(_READ, 0, total)

    def _take(
        self,
        mapped: Any,
        batch: list[TransferPiece],
        promise: Any,
        sources: Sequence[TransferSource],
        targets: Sequence[Bytes],
    ) -> None:
        """Wait for a mapped buffer, copy its pieces to their targets, and keep it for the next time."""
        promise.sync_wait()  # another thread polls the device meanwhile; this one waits without the GIL
        view = np.frombuffer(mapped.read_mapped(copy=False), np.uint8)
        for piece in batch:
            _, offset, nbytes = sources[piece.source]
            before = offset % 4  # bytes of the first word that were not asked for
            first, last = max(before, piece.result_offset), min(before + nbytes, piece.result_offset + piece.nbytes)
            shift = piece.mapped_offset - piece.result_offset
            targets[piece.source][first - before : last - before] = view[first + shift : last + shift]
        # The memory goes away with unmap(), and nothing may look at it any more.
        del view
        mapped.unmap()
        self._kept.append(mapped)
        while self.kept_bytes > KEPT_BYTES:
            self._kept.popleft()

    def _mapped_buffer(self, nbytes: int) -> Any:
        """A buffer of at least so many bytes that the host can map, a kept one where there is one."""
        size = max(_SMALLEST_BUFFER, 1 << (nbytes - 1).bit_length())
        for position, buffer in enumerate(self._kept):
            if buffer.size == size:
                del self._kept[position]
                return buffer
        return self._device.create_buffer(size=size, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST)
