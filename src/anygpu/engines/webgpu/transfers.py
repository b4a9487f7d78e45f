"""Bytes between the host and the device.

Uploads go through the queue's own `write_buffer`, in pieces: on lavapipe that was as fast as rings of mapped buffers at
every size, and one call for a whole large array far slower. Downloads use mapped buffers again, since `read_buffer`
makes one each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import wgpu

from anygpu.engines.driver import Bytes
from anygpu.engines.webgpu.bind_groups import round_up
from anygpu.engines.webgpu.submission import Gate

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
        self._device = device
        self._gate = gate
        self._batch = batch
        self._kept: deque[Any] = deque()

    @property
    def kept_bytes(self) -> int:
        return sum(buffer.size for buffer in self._kept)

    def read(self, sources: Sequence[TransferSource]) -> list[Bytes]:
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
        size = max(_SMALLEST_BUFFER, 1 << (nbytes - 1).bit_length())
        for position, buffer in enumerate(self._kept):
            if buffer.size == size:
                del self._kept[position]
                return buffer
        return self._device.create_buffer(size=size, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST)
