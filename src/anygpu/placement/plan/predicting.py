"""The predicted time of a program on a device: native code, kernels by phase, and corrections learnt from calls.

`predict` adds up launches, kernels and transfers by a device's calibration. `Corrections` learn from calls how far
predictions are off, for each device and class of work, and `doubt_about` says how far they may still be.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from anygpu.placement.plan.calibration import ARITHMETIC, Calibration, NativeSpeed
from anygpu.placement.plan.candidate_history import median
from anygpu.placement.plan.fusion import Kernel, structure_of
from anygpu.program.graph import OperationClass, Program
from anygpu.receipts.receipt import Phases

# -- the predicted time of a program on a device
#
# By phase, from its kernels and the calibration of the device.
#
# A kernel takes what its main operation takes by itself, by the device's calibration, and what else it does on the
# way. What a function costs inside of a kernel is the time of that function alone, without the time for the memory
# traffic that it has when it is alone. Opening the device is no part of a prediction.


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
    from anygpu.placement.plan.native_estimate import native_seconds, native_steps

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


# -- the errors of predictions
#
# Learnt from calls and trials, so that the next program's prediction is better.
#
# Each program has one error on each device: what it took there, by what the calibration alone had predicted. A
# program that is new there is corrected by those that were predicted to take about as long: what short programs have
# in common is what every call costs, and what long ones have in common is the speed of the device. Which operations
# they consist of says less. While there are no such programs, all others count, if they were far off. A device whose
# predictions are doubted says so in `ag.explain`.


#: The weights of a program's newest error, where it took less than before and where it took more: what else the machine
#: does only ever adds, so a faster call is believed sooner.
_FASTER, _SLOWER = 0.7, 0.15
#: Below this, a call takes what starting it takes, which says nothing of programs with more work.
_SHORT = 1e-3
#: No correction is larger: beyond that something else is wrong than the model.
MOST = 20.0
#: Programs whose predictions are within this factor of one another are about as long.
ALIKE = 10.0
#: So many programs are needed for a correction; one may have reasons of its own.
ENOUGH = 2
#: Errors of programs of other lengths count when they are larger than this.
FAR_OFF = 3.0
#: The programs that are remembered for each device: the latest ones.
MOST_PROGRAMS = 64


class Error(NamedTuple):
    """What one program took on one device, by what was predicted for it."""

    #: Seconds, by the calibration alone.
    predicted: float
    #: Its logarithm: 0 for a prediction that was right, more than 0 for one that was too low.
    logarithm: float
    #: Whether it was measured while something else kept the machine busy.
    is_rough: bool


def factor_from(errors: Collection[Error], predicted: float) -> float:
    """What a prediction of so many seconds is multiplied by, given the errors of other programs there."""
    alike = [each.logarithm for each in errors if 1 / ALIKE <= each.predicted / predicted <= ALIKE]
    if len(alike) >= ENOUGH:
        return math.exp(median(alike))
    others = [each.logarithm for each in errors if (each.predicted < _SHORT) == (predicted < _SHORT)]
    middle = median(others) if len(others) >= ENOUGH else 0.0
    return math.exp(middle) if abs(middle) > math.log(FAR_OFF) else 1.0


def doubt_about(device: str, factor: float) -> str | None:
    """The words for a correction by that factor; `None` for one that is not worth mentioning."""
    if 1 / FAR_OFF <= factor <= FAR_OFF:
        return None
    times, way = (factor, "low") if factor > 1 else (1 / factor, "high")
    return f"predictions for {device} were {times:.0f}× too {way} so far"


class Corrections:
    """The errors of the latest programs on each device."""

    def __init__(self) -> None:
        self._errors: dict[str, OrderedDict[str, Error]] = {}
        #: Rises when something was learnt that changes other predictions by much.
        self.version = 0

    def factor(self, device: str, predicted: float, program: str = "") -> float:
        """The factor for a program, by its own error if it has run there; else by those of others of about its length.

        `predicted` is what the calibration alone says.
        """
        errors = self._errors.get(device)
        if not errors or not predicted > 0:
            return 1.0
        own = errors.get(program)
        if own is not None:
            return math.exp(own.logarithm)
        return factor_from(errors.values(), predicted)

    def learn(self, device: str, predicted: float, actual: float, *, program: str = "", is_rough: bool = False) -> None:
        """`predicted` is what the calibration alone says. A rough time counts until there is a better one."""
        if not (0 < predicted < math.inf and 0 < actual < math.inf):
            return
        errors = self._errors.setdefault(device, OrderedDict())
        old = errors.get(program)
        if old is not None and is_rough and not old.is_rough:
            return
        error = max(-math.log(MOST), min(math.log(MOST), math.log(actual) - math.log(predicted)))
        if old is not None and old.is_rough == is_rough:
            weight = _FASTER if error < old.logarithm else _SLOWER
            error = old.logarithm + weight * (error - old.logarithm)
        elif abs(error) > math.log(FAR_OFF):
            self.version += 1
        errors[program] = Error(predicted, error, is_rough)
        errors.move_to_end(program)
        if len(errors) > MOST_PROGRAMS:
            errors.popitem(last=False)

    def forget(self, device: str) -> None:
        """The device was calibrated: earlier predictions say nothing about the next ones."""
        if self._errors.pop(device, None):
            self.version += 1

    def programs(self, device: str) -> int:
        """How many programs are remembered."""
        return len(self._errors.get(device, ()))
