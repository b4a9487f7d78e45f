"""The predicted time of a program on a device, by phase, from its kernels and the calibration of the device.

A kernel takes what its main operation takes by itself, by the device's calibration, and what else it does on the way.
What a function costs inside of a kernel is the time of that function alone, without the time for the memory traffic
that it has when it is alone. Opening the device is no part of a prediction.
"""

from __future__ import annotations

import msgspec

from anygpu.plan.calibration import ARITHMETIC, Calibration, NativeSpeed
from anygpu.plan.fusion_estimate import structure_of
from anygpu.plan.kernel_work import Kernel
from anygpu.program.costs import OperationClass
from anygpu.program.graph import Program
from anygpu.receipts import Phases

#: A function inside of a kernel costs at least this share of its cost alone.
_LEAST_OF_A_FUNCTION = 0.2
#: A device that takes so much longer for 64-bit numbers has little or no hardware for them.
_EMULATED = 8.0


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The expected time of one call."""

    phases: Phases
    seconds: float
    peak_bytes: int
    #: Of these seconds, those on the way to another machine and back; 0 on this one.
    network: float = 0.0


def predict(
    program: Program,
    calibration: Calibration,
    *,
    resident_bytes: int = 0,
    keep: bool = False,
    compiled: bool = True,
) -> Expected:
    """One call of the program. Of its inputs `resident_bytes` are on the device; with `keep` its results stay there."""
    if calibration.native is not None:
        return _native(program, calibration, calibration.native, compiled=compiled)
    structure = structure_of(program, fuses=calibration.fuses)
    kernels = structure.kernels
    phases = Phases(
        compile=0.0 if compiled else calibration.compile * len(kernels),
        write=calibration.write.seconds(max(structure.bytes_in - resident_bytes, 0)),
        run=calibration.launch + sum(seconds_of(kernel, calibration) for kernel in kernels),
        read=0.0 if keep else calibration.read.seconds(structure.bytes_out),
    )
    network = 0.0
    if calibration.network is not None:
        sent = max(structure.bytes_in - resident_bytes, 0)
        network = min(phases.total, calibration.network.seconds(sent, 0 if keep else structure.bytes_out))
    return Expected(phases=phases, seconds=phases.total, peak_bytes=structure.peak_bytes, network=network)


def _native(program: Program, calibration: Calibration, speed: NativeSpeed, *, compiled: bool) -> Expected:
    """One call of native code: nothing is moved to it, and nothing back."""
    # It needs code generation, which a process without native code never loads.
    from anygpu.plan.native_estimate import native_seconds, native_steps

    steps = native_steps(program, speed.vector_bytes)
    compiling = 0.0 if compiled else calibration.compile * max(1, len(steps.nests))
    phases = Phases(compile=compiling, run=native_seconds(steps, calibration, speed))
    return Expected(phases=phases, seconds=phases.total, peak_bytes=steps.peak_bytes)


def seconds_of(kernel: Kernel, calibration: Calibration) -> float:
    """One kernel, with what it takes to start it."""
    rates = calibration.rates
    memory = rates["elementwise"]
    seconds = rates.get(kernel.kind, memory).seconds(kernel.amount)
    if kernel.kind in ARITHMETIC:
        slower = _wider(kernel.kind, calibration) if kernel.wide else 1.0
        seconds = max(seconds * slower, memory.seconds(kernel.traffic))
    if kernel.functions or kernel.others:
        seconds += _fused(kernel.functions, kernel.others, kernel.elements, kernel.wide, calibration)
    return max(seconds, calibration.kernel)


def seconds_inside(kernel: Kernel, calibration: Calibration) -> float:
    """The time of a kernel's operation as a part of another kernel, if it can be fused."""
    if kernel.kind == "transcendental":
        return _fused(int(kernel.amount), 0, kernel.elements, kernel.wide, calibration)
    if kernel.kind == "elementwise":
        return _fused(0, kernel.elements, kernel.elements, kernel.wide, calibration)
    return seconds_of(kernel, calibration)


def _fused(functions: int, others: int, elements: int, wide: bool, calibration: Calibration) -> float:
    """Operations on so many elements that are on their way through a kernel."""
    memory = calibration.rates["elementwise"]
    size = max(elements, 1)
    seconds = 0.0
    if functions:
        if calibration.function is not None:
            once = calibration.function * size
        else:
            alone = calibration.rates["transcendental"].seconds(size)
            once = max(alone - memory.seconds(8 * size), alone * _LEAST_OF_A_FUNCTION)
        seconds += once * functions / size * (_wider("transcendental", calibration) if wide else 1.0)
    if others:
        seconds += memory.seconds(12 * size) * calibration.addition * others / size * (2.0 if wide else 1.0)
    return seconds


def _wider(kind: OperationClass, calibration: Calibration) -> float:
    """Functions in 64 bits are other algorithms; everything else takes twice as long where there is hardware for it."""
    return calibration.wide if kind == "transcendental" or calibration.wide > _EMULATED else min(calibration.wide, 2.0)
