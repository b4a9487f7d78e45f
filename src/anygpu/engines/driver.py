"""The driver of an engine that compiles: one open device of a library, which holds memory and runs kernels.

Everything above this seam (`anygpu.engines.compiling_session`) is the same for WebGPU and OpenCL; everything that knows
the library is below it, in one folder for each.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from anygpu.engines.codegen.custom.lowering import refusal
from anygpu.engines.codegen.custom.reflected import Reflected
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.lower import is_general_power
from anygpu.engines.codegen.target import Target, missing_feature
from anygpu.engines.memory.adaptors import Stats
from anygpu.engines.memory.resource import Block as MemoryBlock
from anygpu.engines.protocol import Lack, why_not_here
from anygpu.errors import InvalidKernel
from anygpu.program.dtypes import KIND
from anygpu.program.graph import Program
from anygpu.program.ops.custom import Custom
from anygpu.program.primitives import Binary, Input, Linear, Primitive, Reduce, Scan, Spec

#: A piece of the device's memory, and a kernel that is ready to run: the driver's own objects.
DriverBlock = Any
Built = Any

Bytes = npt.NDArray[np.uint8]


class Extent(NamedTuple):
    """A part of a block."""

    block: DriverBlock
    offset: int
    nbytes: int


class Dispatch(NamedTuple):
    """A built kernel on its buffers. Offsets that the device cannot bind are in the kernel's numbers already."""

    built: Built
    extents: tuple[Extent, ...]
    numbers: tuple[int, ...] = ()


class Move(NamedTuple):
    """Bytes from one extent to another of the same length, by the device itself."""

    source: Extent
    target: Extent


class Clear(NamedTuple):
    """Zeros."""

    extent: Extent


Command = Dispatch | Move | Clear


class Counters(msgspec.Struct, kw_only=True):
    """What a driver has done since it was opened. Nothing is ever taken off."""

    #: Blocks that the library itself made; a pool's reuse does not count.
    allocations: int = 0
    #: Kernels that the library itself compiled.
    compilations: int = 0
    submits: int = 0
    dispatches: int = 0
    bytes_to_device: int = 0
    bytes_to_host: int = 0


def difference(more: Counters, less: Counters) -> Counters:
    """What was done beyond `less`."""
    return Counters(
        allocations=more.allocations - less.allocations,
        compilations=more.compilations - less.compilations,
        submits=more.submits - less.submits,
        dispatches=more.dispatches - less.dispatches,
        bytes_to_device=more.bytes_to_device - less.bytes_to_device,
        bytes_to_host=more.bytes_to_host - less.bytes_to_host,
    )


class Driver(Protocol):
    """One open device. Not to be used from two threads at once."""

    @property
    def target(self) -> Target: ...

    @property
    def alignment(self) -> int:
        """An extent that is bound begins at a multiple of so many bytes."""

    @property
    def counters(self) -> Counters: ...

    def allocate(self, nbytes: int) -> DriverBlock:
        """Memory for kernels and transfers. A multiple of 4 bytes is made of any size; raises the library's errors."""

    def release(self, block: DriverBlock) -> None:
        """Give it back to the library. What has been submitted may still be using it.

        A block that is dropped without this must not be in use: its memory may be the host's, and is then free at once.
        """

    def write(self, extent: Extent, data: Bytes) -> None:
        """From the host, in order with what is submitted before and after. `data` may be reused on return.

        An extent owns the whole of its last word: up to three bytes after its end may change.
        """

    def read(self, extent: Extent) -> Bytes:
        """Wait for everything that was submitted, and copy."""

    def read_many(self, extents: Sequence[Extent]) -> list[Bytes]:
        """Like `read` of each, with one wait for all of them."""

    def read_into(self, extents: Sequence[Extent], targets: Sequence[Bytes]) -> None:
        """Like `read_many`, into memory that the caller has: for each extent an array of as many bytes."""

    def read_view(self, extent: Extent, *, owner: object) -> Bytes:
        """Like `read`, but without the copy where the host sees the device's memory.

        The result then keeps `owner` alive: what returns the block to a pool when it dies.
        """

    def build(self, kernel: Kernel) -> Built:
        """Compile, or take from what was compiled before."""

    def submit(self, commands: Sequence[Command], *, timed: bool = False) -> None:
        """All of them in order, as one submission where the library allows; returns before they are done.

        A kernel whose grid would run too long for one dispatch is cut along its groups.
        """

    def prepared(self, commands: Sequence[Command]) -> Any | None:
        """What `submit` works out of these commands, for `submit_prepared`; it holds their blocks.

        `None` where that may change from one submission to the next.
        """

    def submit_prepared(self, prepared: Any) -> None:
        """`submit` of the commands once more. None of their blocks was released in between."""

    def device_seconds(self) -> float | None:
        """By the device's own clock: of the last submission that was `timed`; waits for it. `None` when it has none."""

    def synchronize(self) -> None:
        """Return when the device has nothing left to do."""

    def close(self) -> None: ...


@runtime_checkable
class ReadsKernels(Protocol):
    """A driver whose compiler tells what a user's kernel takes."""

    def reflected(self, source: str, entry: str | None, title: str) -> Reflected:
        """Return the facts about the kernel. Raises `InvalidKernel` for one that does not compile."""


@runtime_checkable
class TransfersApart(Protocol):
    """A driver whose device takes and gives bytes while it computes.

    One other thread may write and one may read, without the lock that is held around every other use of the driver.
    """

    def until_done(self) -> Callable[[], None]:
        """What waits, without the lock, for everything that is submitted now. It raises nothing."""

    def until_free(self, extent: Extent) -> Callable[[], None] | None:
        """What waits, without the lock, for everything that is submitted now and uses the extent; `None` for nothing.

        Raises if the driver is closed.
        """

    def write_apart(self, extent: Extent, data: Bytes) -> None:
        """Like `write`, for an extent that nothing uses which was submitted. Return when the bytes are there."""

    def read_apart(self, extent: Extent, target: Bytes) -> None:
        """Like `read_into`, for an extent that nothing writes to which was submitted."""


# -- kernels that would run too long, cut along their groups


#: A dispatch that runs much longer makes a desktop stutter, cannot be given up, and is killed by some systems at 2 s.
LONGEST_SECONDS = 0.2


class AssumedPace(NamedTuple):
    """What a device is sure to reach, for kernels that have never run. Too low only means a few cuts too many."""

    flops_per_second: float = 2e9
    bytes_per_second: float = 2e9

    def seconds(self, flops: float, bytes_moved: float) -> float:
        return max(flops / self.flops_per_second, bytes_moved / self.bytes_per_second)


class GridCut(NamedTuple):
    """A part of a grid."""

    first_group: int
    groups: int


def cuts(groups: int, seconds: float, *, longest: float = LONGEST_SECONDS, most: int | None = None) -> list[GridCut]:
    """Parts in order that cover `groups`, each of at most `longest` seconds by the estimate and `most` groups.

    They are as equal as they can be, because some compilers specialise a kernel to the size of its grid.
    """
    if groups <= 0:
        return []
    pieces = max(1, math.ceil(seconds / longest))
    if most is not None:
        pieces = max(pieces, -(-groups // most))
    pieces = min(pieces, groups)
    bounds = [groups * piece // pieces for piece in range(pieces + 1)]
    return [GridCut(first, after - first) for first, after in itertools.pairwise(bounds)]


# -- blocks of a device's memory that go back by themselves


#: Whom memory is counted for.
ARRAYS, TEMPORARIES, CONSTANTS, TUNING = "arrays", "temporaries", "constants", "tuning"


class BlockRef:
    """A block that goes back when the last array in it is gone."""

    __slots__ = ("__weakref__", "_memory", "block")

    def __init__(self, memory: Stats, nbytes: int, owner: str) -> None:
        self._memory = memory
        self.block: MemoryBlock = memory.allocate(nbytes, owner=owner)

    def __del__(self) -> None:
        """Give the block back when nobody holds it any more."""
        block = getattr(self, "block", None)
        if block is not None:
            self._memory.release(block)

    def extent(self, nbytes: int) -> Extent:
        """Its first bytes."""
        return Extent(self.block.handle, 0, nbytes)


def window_of(extent: Extent, window: tuple[int, int] | None) -> Extent:
    """What a kernel sees of an extent. Of what begins at an offset, the last window may turn out to show nothing."""
    if window is None:
        return extent
    first, nbytes = window
    left = extent.nbytes - first
    if left <= 0:
        return Extent(extent.block, extent.offset, min(extent.nbytes, 4))
    return Extent(extent.block, extent.offset + first, min(nbytes, left))


#: Without a kernel of their own.
_WITHOUT: tuple[type[Primitive], ...] = (Linear,)


#: Positions in kernels are 32-bit integers with a sign.
_MOST_ELEMENTS = (1 << 31) - 1


_NAMES = {"f64": "64-bit floating point", "i64": "64-bit integers"}


def why_not(program: Program, target: Target, device: str) -> list[Lack]:
    """The nodes that a target has no kernels for, each with the reason.

    Reasons are types that the device lacks, sizes beyond 31 bits, and operations that stay NumPy's.
    """
    found: list[Lack] = []
    for position, (op, inputs) in enumerate(program.nodes):
        if isinstance(op, Input):
            continue
        specs = [program.specs[source] for source in inputs] + [program.specs[position]]
        missing = next((need for spec in specs if (need := missing_feature(spec.dtype, target))), None)
        if missing is not None:
            found.append(Lack(position, f"{device} has no {_NAMES[missing]}"))
        elif any(spec.size > _MOST_ELEMENTS for spec in specs):
            found.append(Lack(position, f"{target.dialect} kernels count elements in 31 bits"))
        elif isinstance(op, _WITHOUT) and program.specs[position].size:
            found.append(Lack(position, f"anygpu has no kernel for {op.name}"))
        elif isinstance(op, Binary) and op.fn == "power" and is_general_power(program, position):
            found.append(Lack(position, "complex powers of infinities and NaN are NumPy's own"))
        elif isinstance(op, Reduce | Scan) and op.fn == "prod" and KIND[specs[0].dtype] == "complex":
            found.append(Lack(position, "signs of zeros in complex products depend on their order"))
        elif isinstance(op, Custom):
            why = _why_not_custom(op, tuple(specs[:-1]), target, device)
            if why is not None:
                found.append(Lack(position, why))
    return found


def _why_not_custom(op: Custom, inputs: tuple[Spec, ...], target: Target, device: str) -> str | None:
    """A kernel in another language is as good as its reference."""
    if op.language == target.dialect:
        try:
            why = refusal(op, inputs, target)
        except InvalidKernel:
            # It is raised when it is compiled: a kernel that is wrong is wrong everywhere.
            return None
        return None if why is None else f"the kernel {op.title}: {why}"
    return why_not_here(op, device, lambda reference: why_not(reference, target, device))
