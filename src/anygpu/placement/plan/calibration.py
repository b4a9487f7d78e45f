"""The speed of a device: measured once, kept on disk, and assumed before that.

The curve of a class is that of a program of *one* operation of it, on float32 values (complex64 for `fourier`) that
are on the device already and with a result that stays there, beyond `launch`: `a + b`, a transcendental function,
`a.sum(axis=-1)` of rows, `cumsum` of rows, a transposition that is written out, the product of two square matrices,
`take` along the first axis, `sort` of rows, `fft` of rows, `solve`. What fused operations cost is found from these
(see `predicting`).
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from itertools import pairwise
from typing import Literal

import msgspec

from anygpu.base.this_process import usable_processors
from anygpu.engines.catalogue import traits_of
from anygpu.errors import AnyGPUError
from anygpu.hardware.device import CPU, Device
from anygpu.program.graph import Cost, OperationClass

#: Classes whose time goes with the operations that they do. That of all others goes with the bytes that they move.
ARITHMETIC: frozenset[OperationClass] = frozenset({"transcendental", "contraction", "sort", "fourier", "linear"})

#: measured: by the calibration of this device; assumed: from its kind alone.
Source = Literal["measured", "assumed"]


class Curve(msgspec.Struct, frozen=True):
    """Seconds for an amount of work, at a few amounts; between them, and beyond, by straight lines of logarithms."""

    #: Amount and seconds, amounts rising. At least one.
    points: tuple[tuple[float, float], ...]

    def seconds(self, amount: float) -> float:
        """Below the smallest amount a call costs what that one costs; beyond the largest, time grows with amounts."""
        points = self.points
        if amount <= points[0][0]:
            return points[0][1]
        if amount >= points[-1][0]:
            return points[-1][1] * amount / points[-1][0]
        for (low, fast), (high, slow) in pairwise(points):
            if amount <= high:
                share = math.log(amount / low) / math.log(high / low)
                return fast * math.pow(slow / fast, share) if fast > 0 else slow * amount / high
        return points[-1][1]


class Transfer(msgspec.Struct, frozen=True):
    """Moving bytes one way between the host and the device."""

    latency: float
    bytes_per_second: float

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bytes_per_second if nbytes else 0.0


class NetworkSpeed(msgspec.Struct, frozen=True):
    """The way between this machine and another one."""

    #: One question and its answer, with next to nothing in them.
    latency: float
    sent_per_second: float
    received_per_second: float

    def seconds(self, bytes_sent: float, bytes_received: float) -> float:
        return self.latency + bytes_sent / self.sent_per_second + bytes_received / self.received_per_second


class NativeSpeed(msgspec.Struct, frozen=True):
    """How fast the loop nests of native code are."""

    #: How much faster all threads are than one.
    threads: float
    vector_bytes: int
    #: Seconds of an instruction on one thread, as `anygpu.engines.codegen.nests.inspection` counts them, and of
    #: bytes on all.
    instruction: float
    bytes_per_second: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """One device's speed. All times are what a caller waits for, through the home that its worker has by default."""

    device: str
    source: Source
    #: A call of the smallest program with nothing to move, beyond what its kernels take.
    launch: float
    #: One more kernel in a call.
    kernel: float
    write: Transfer
    read: Transfer
    #: Seconds for an amount of work of that class, launch excluded, in 32-bit types. The amount is `amount_of`'s.
    rates: dict[OperationClass, Curve]
    #: How much longer as many operations take in 64-bit types, where `amount_of` counts operations and not bytes.
    wide: float
    #: Building one kernel that was never built before.
    compile: float
    #: Whether neighbouring operations become one kernel, so that what is between them never reaches memory.
    fuses: bool
    #: Starting to use the device at all: importing its library, opening it.
    open: float
    #: A transcendental function of one 32-bit number, between others inside of a kernel of a device that fuses. It is
    #: estimated from the curves where it was not measured.
    function: float | None = None
    #: The cost of one more addition inside of a kernel, as a share of its cost alone.
    addition: float = 0.05
    #: The classes of which something was measured; the others are assumed, and scaled by these.
    measured: tuple[OperationClass, ...] = ()
    #: Whether something else had the processors meanwhile: it may be faster than this says, and the next
    #: process measures it again.
    disturbed: bool = False
    #: The way to its machine and back, which is a part of the times above; `None` for this one.
    network: NetworkSpeed | None = None
    #: For native code: then `rates` are those of NumPy, which computes what is no nest; `None` for other devices.
    native: NativeSpeed | None = None

    @property
    def is_plausible(self) -> bool:
        """Whether it can be reckoned with: times are finite and not below 0, and what is divided by is more than 0."""
        curves = [point for curve in self.rates.values() for point in curve.points]
        times = [self.launch, self.kernel, self.wide, self.compile, self.open, self.addition, self.function or 0.0]
        times += [self.write.latency, self.read.latency, *(seconds for _, seconds in curves)]
        amounts = [self.write.bytes_per_second, self.read.bytes_per_second, *(amount for amount, _ in curves)]
        if (native := self.native) is not None:
            amounts += [native.threads, native.vector_bytes, native.instruction, native.bytes_per_second]
        rising = all(
            curve.points and all(low < high for (low, _), (high, _) in pairwise(curve.points))
            for curve in self.rates.values()
        )
        return rising and all(0 <= each < math.inf for each in times) and all(0 < each <= math.inf for each in amounts)


def through(network: NetworkSpeed, known: Calibration, device: str) -> Calibration:
    """The speed of a device of another machine, from its speed there and the way to it."""
    launch = known.launch + network.latency
    # What goes with the question needs no question of its own.
    write = Transfer(known.write.latency, _one_after_the_other(known.write, network.sent_per_second))
    read = Transfer(known.read.latency, _one_after_the_other(known.read, network.received_per_second))
    return msgspec.structs.replace(known, device=device, launch=launch, write=write, read=read, network=network)


def _one_after_the_other(transfer: Transfer, per_second: float) -> float:
    return 1.0 / (1.0 / transfer.bytes_per_second + 1.0 / per_second)


def amount_of(cost: Cost) -> float:
    """The work of an operation, in the unit of its class: the operations it does, or the bytes it reads and writes."""
    return float(cost.flops if cost.kind in ARITHMETIC else cost.bytes_read + cost.bytes_written)


def assumed(device: Device) -> Calibration:
    """The likely speed of a device of this kind, until it has been measured."""
    traits = traits_of(device.engine)
    guess = traits.rates_of(device.form)
    by_class: dict[OperationClass, float] = {
        "creation": guess.memory,
        "elementwise": guess.memory,
        "reduce": guess.memory,
        "scan": guess.memory / 4,
        "movement": guess.memory / 2,
        "indexing": guess.indexing,
        "transcendental": guess.functions,
        "contraction": guess.products,
        "fourier": guess.transforms,
        "sort": guess.sorting,
        "linear": guess.solving,
    }
    way = Transfer(guess.latency, guess.bytes_per_second)
    return Calibration(
        device=device.id,
        source="assumed",
        launch=guess.launch,
        kernel=guess.kernel,
        write=way,
        read=way,
        rates={kind: _straight(rate) for kind, rate in by_class.items()},
        wide=guess.wide,
        compile=guess.compile,
        fuses=traits.fuses,
        open=guess.open,
        native=assumed_speed() if device.engine == CPU else None,
    )


def assumed_speed() -> NativeSpeed:
    """The likely speed of native code on this machine, until it has been measured."""
    from anygpu.engines.cpu.loader import host_processor
    from anygpu.engines.cpu.pool import wanted_threads

    vector_bytes = 32
    # Nothing says which processor it is where there is no LLVM.
    with suppress(AnyGPUError):
        vector_bytes = host_processor().vector_bytes
    return NativeSpeed(wanted_threads(usable_processors(), os.environ), vector_bytes, 5e-10, 2e10)


def _straight(per_second: float) -> Curve:
    """The same rate at every amount."""
    least, most = 1e2, 1e9
    return Curve(((least, least / per_second), (most, most / per_second)))
