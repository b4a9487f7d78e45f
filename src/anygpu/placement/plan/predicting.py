"""The predicted time of a program on a device: native code, kernels by phase, and corrections learnt from calls.

`structure_of` has the kernels that a program becomes, roughly, and the memory that they need. `predict` adds up
launches, kernels and transfers by a device's calibration. `Corrections` learn from calls how far predictions are off,
for each device and class of work, and `doubt_about` says how far they may still be.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from anygpu.placement.plan.calibration import ARITHMETIC, Calibration, NativeSpeed, amount_of
from anygpu.placement.plan.candidate_history import median
from anygpu.program import primitives as p
from anygpu.program.dtypes import ITEMSIZE, KIND
from anygpu.program.graph import OperationClass, Program, node_costs
from anygpu.program.primitives import Primitive
from anygpu.receipts.receipt import Phases

# -- the work of one kernel, as predictions count it


#: Choosing one of two values by itself, element by element, is hard to foresee for a processor.
WEIGHT_OF_A_SELECTION = 4.0


class Kernel(NamedTuple):
    """The work of one kernel."""

    #: The class of what it is there for, and how much of that it does (see `amount_of`).
    kind: OperationClass
    amount: float
    #: Bytes that it reads from memory and writes there.
    traffic: int
    #: Elements of the largest value that it computes.
    elements: int
    #: Operations that it does besides: functions such as `exp`, and everything else that is elementwise.
    functions: int
    others: int
    #: Whether it computes in 64-bit types.
    wide: bool
    nodes: tuple[int, ...]
    #: The values that it finds in memory, inputs among them, and those that it leaves there.
    reads: tuple[int, ...]
    stored: tuple[int, ...]


def weight_of(op: Primitive, spec: p.Spec, of_a_selection: float = 1.0) -> float:
    """How many times as long an operation takes as most of its class do; a selection as long as is given."""
    return of_a_selection if isinstance(op, p.Select) else op.weight(spec.dtype)


def is_wide(program: Program, position: int) -> bool:
    """Whether an operation is one of 64-bit numbers."""
    op, inputs = program.nodes[position]
    # Positions are 64-bit integers, whatever is sorted or searched.
    return _is_wide(program.specs[inputs[0] if op.gives_positions else position])


def _is_wide(spec: p.Spec) -> bool:
    return ITEMSIZE[spec.dtype] == (16 if KIND[spec.dtype] == "complex" else 8)


# -- which kernels a program becomes
#
# Roughly and quickly: enough to predict time and memory, not to generate code.
#
# An engine that does not fuse has one kernel for each operation. One that fuses stores few values: results, what
# matrix products, sums, sorts and the like make, and what these need whole. Everything else is computed inside of the
# kernels that use it (see `fused_kernels`).


#: Programs with more operations are taken to be kernels of one operation each. Grouping takes 70 µs for each, and more
#: for each of so many.
MOST_GROUPED = 5000
SECONDS_FOR_EACH = 7e-5

#: Kernels compute with words of 32 bits, and what they keep for one another is stored as that.
_WORD = 4


class KernelStructure(NamedTuple):
    """A program as kernels, in an order in which they can run."""

    kernels: tuple[Kernel, ...]
    #: Bytes that cross to the device and back, if inputs and results live elsewhere.
    bytes_in: int
    bytes_out: int
    #: The most that is held at once: inputs, results and tables all the time, what is between while it is needed.
    peak_bytes: int


@lru_cache(maxsize=1024)
def structure_of(program: Program, *, fuses: bool) -> KernelStructure:
    """The kernels of a program, with the bytes that cross to the device and the most memory that is held at once.

    With `fuses` they are grouped as code generation does, for programs of up to `MOST_GROUPED` nodes; otherwise each
    operation is a kernel. The last 1,024 answers are kept.
    """
    if fuses and len(program.nodes) <= MOST_GROUPED:
        # It needs a part of code generation, which a process without such a device never loads.
        from anygpu.placement.plan.fused_kernels import fused_kernels

        kernels = fused_kernels(program)
    else:
        kernels = _one_by_one(program)
    bytes_in = sum(spec.nbytes for spec in program.inputs)
    bytes_out = sum(spec.nbytes for spec in program.results)
    ends = bytes_in + bytes_out + sum(spec.nbytes for spec in tables_of(program))
    return KernelStructure(kernels, bytes_in, bytes_out, ends + most_at_once(temporaries_of(program, kernels)))


def tables_of(program: Program) -> list[p.Spec]:
    """Constants that are more than a number; they stay on the device with the program."""
    pairs = zip(program.nodes, program.specs, strict=True)
    return [spec for node, spec in pairs if isinstance(node.op, p.Constant) and spec.size > 1]


class HeldMemory(NamedTuple):
    """Memory that is needed from one kernel to another, by their numbers."""

    nbytes: int
    first: int
    last: int


def temporaries_of(program: Program, kernels: Sequence[Kernel]) -> list[HeldMemory]:
    """The values between inputs and results, in words as kernels compute with them."""
    outputs = set(program.outputs)
    last: dict[int, int] = {}
    for number, kernel in enumerate(kernels):
        for value in kernel.reads:
            last[value] = number
    found: list[HeldMemory] = []
    for number, kernel in enumerate(kernels):
        found += [
            HeldMemory(_words(program.specs[value]), number, last.get(value, number))
            for value in kernel.stored
            if value not in outputs
        ]
        for node in kernel.nodes:
            passing = _passing(program, node)
            if passing:
                found.append(HeldMemory(passing, number, number))
    return found


def most_at_once(blocks: Iterable[tuple[int, int, int]]) -> int:
    """The most bytes that are held at one moment, of blocks that are each held from a first moment to a last."""
    changes: dict[int, int] = {}
    for nbytes, first, last in blocks:
        changes[first] = changes.get(first, 0) + nbytes
        changes[last + 1] = changes.get(last + 1, 0) - nbytes
    held = most = 0
    for moment in sorted(changes):
        held += changes[moment]
        most = max(most, held)
    return most


def _passing(program: Program, node: int) -> int:
    """The temporary memory of an operation that goes over its values several times."""
    op, inputs = program.nodes[node]
    # Several updates of one element are sorted by their places first, or put into copies that are joined later.
    largest = inputs[2] if isinstance(op, p.Scatter) else node
    return op.scratch_copies * _words(program.specs[largest])


def _words(spec: p.Spec) -> int:
    return spec.size * max(ITEMSIZE[spec.dtype], _WORD)


def _one_by_one(program: Program) -> tuple[Kernel, ...]:
    """A kernel for each operation that is not a view: the kernels of an engine that does not fuse."""
    #: For each value the one that was computed, which it is or looks at. Views cost nothing, even as results.
    behind: list[int] = []
    found = []
    for position, cost in enumerate(node_costs(program)):
        op, inputs = program.nodes[position]
        is_view = op.is_view
        behind.append(behind[inputs[0]] if is_view else position)
        if is_view or isinstance(op, p.Input | p.Constant):
            continue
        traffic = cost.bytes_read + cost.bytes_written
        amount = amount_of(cost) * weight_of(op, program.specs[position], WEIGHT_OF_A_SELECTION)
        wide = is_wide(program, position)
        elements = program.specs[position].size
        reads = tuple(behind[source] for source in inputs)
        found.append(Kernel(cost.kind, amount, traffic, elements, 0, 0, wide, (position,), reads, (position,)))
    return tuple(found)


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
