"""Small programs whose times tell how fast a device is, and what those times say.

Most important first, because the time for it may run out. What was not measured is assumed, and scaled by how far the
assumptions were off where it was. Shapes are a little odd on purpose: a trial is compiled in haste, without looking for
good sizes of its kernels, and must not be taken for a program of the user's that is compiled with care.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

import msgspec
import numpy as np

from anygpu.base.typing import HostArray
from anygpu.hardware.device import Device
from anygpu.placement.plan.calibration import ARITHMETIC, Calibration, Curve, Transfer, amount_of, assumed
from anygpu.program.dtypes import DType
from anygpu.program.graph import OperationClass, Program, Recorder, node_cost
from anygpu.program.primitives import (
    Binary,
    Broadcast,
    Concatenate,
    Constant,
    Contract,
    Fourier,
    Gather,
    Iota,
    Linear,
    Permute,
    Primitive,
    Reduce,
    Scan,
    Slice,
    Sort,
    Spec,
    Unary,
)

#: launch: the smallest program. steps: the same with seven operations more, which an engine may fuse. kernels: a few
#: operations that none can. write, read: what moving arrays one way adds to a call. rate: one operation. wide: one
#: of these in 64 bits. chain: eight operations on so many elements that these take the time. functions: the same with
#: a few functions. compile: what a program that was certainly never compiled adds to its first call.
Aspect = Literal["launch", "steps", "kernels", "write", "read", "rate", "wide", "chain", "functions", "compile"]

#: The contents of an input: numbers around 1, positions along the first axis of the first input, or a matrix that is
#: well conditioned.
Fill = Literal["numbers", "positions", "matrix"]

#: How many operations are in a chain for native code, which computes longer than it reads.
_LONG_CHAIN = 64

#: How many operations are in a chain, how many functions in one of functions, and how many kernels in what has several.
CHAIN = 8
FUNCTIONS = 3
KERNELS = 3

#: How many operations are in the program for compilers.
_OPERATIONS_UNHEARD_OF = 2
#: A device that moves nothing at all, as NumPy, has a bandwidth for show.
_MOST_BYTES_PER_SECOND = 1e15
#: Bytes whose transfer is nothing but latency.
_LITTLE = 10_000
#: The share of a call's time that has to be the work itself, for its speed to be known from that.
_TELLING = 0.3
#: Less than any clock can tell.
_LEAST_SECONDS = 1e-9
#: No device moves bytes so much faster than those of its kind usually do, nor begins so much sooner.
_IMPLAUSIBLE = 20.0
#: Eight operations take about as long as one where they are fused, and eight times as long where they are not; between
#: these the machine was too busy to tell, and what is known of the engine holds.
_SURELY_FUSED, _SURELY_NOT = 2.0, 5.0


class BenchmarkTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One program to run, with inputs that are on the device and results that stay there unless they are the point."""

    name: str
    aspect: Aspect
    program: Program
    fills: tuple[Fill, ...]
    #: For `rate` and `wide`: of which class the operation is.
    operation: OperationClass | None = None
    #: The work, as `amount_of` counts it; for `write` and `read` the bytes that move.
    amount: float = 0.0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The best time of a trial; for `write`, `read` and `compile` beyond the same call without that.

    For `steps` and `kernels` it is that beyond `launch`, whose runs took turns with theirs.
    """

    trial: BenchmarkTrial
    seconds: float
    #: How many were started, where the engine tells.
    kernels: int | None = None


def trials(number: float = 1.0) -> list[BenchmarkTrial]:
    """Every trial, in the order in which they are worth their time; `number` is a new one each time, for a compiler.

    To compile takes longer than to run, so trials share programs: an addition serves for its class and for transfers.
    """
    return [
        _launch(),
        *_moves(_TINY),
        _rate("elementwise", _MUCH),
        *_moves(_MUCH),
        _products(256),
        _rate("transcendental", _MUCH),
        _rate("reduce", _MUCH),
        _kernels(),
        _chain("chain", _MUCH),
        _functions(),
        _rate("elementwise", _MIDDLE),
        *_moves(_MIDDLE),
        _products(512),
        _unheard_of(number),
        _rate("elementwise", _LARGE),
        *_moves(_LARGE),
        _chain("steps", _TINY),
        _rate("transcendental", _MIDDLE),
        _rate("reduce", _MIDDLE),
        _rate("sort", _MIDDLE),
        _rate("fourier", _MIDDLE),
        _rate("indexing", _MUCH),
        _rate("movement", _MUCH),
        _rate("scan", _MUCH),
        _rate("linear", 64),
        _wide(_rate("transcendental", _MUCH, "float64")),
        _products(64),
        _rate("creation", _MUCH),
        _rate("transcendental", _LARGE),
        _rate("reduce", _LARGE),
        _rate("indexing", _MIDDLE),
        _rate("movement", _MIDDLE),
        _rate("scan", _MIDDLE),
        _rate("sort", _LESS),
        _rate("fourier", _LESS),
        _rate("linear", 192),
        _products(1024),
        _rate("indexing", _LARGE),
        _rate("movement", _LARGE),
        _rate("scan", _LARGE),
        _rate("elementwise", _SMALL),
        _rate("transcendental", _SMALL),
        _rate("reduce", _SMALL),
        _rate("indexing", _SMALL),
        _rate("movement", _SMALL),
        _rate("scan", _SMALL),
        _rate("sort", _SMALL),
        _rate("fourier", _SMALL),
        _rate("linear", 16),
        _rate("creation", _SMALL),
    ]


def native_trials() -> tuple[BenchmarkTrial, BenchmarkTrial, BenchmarkTrial]:
    """What tells the speed of native code: arithmetic on one thread and on all, and an addition of large arrays."""

    def arithmetic(size: int) -> BenchmarkTrial:
        program = _steps(size, _LONG_CHAIN)
        return BenchmarkTrial(name=f"arithmetic {size}", aspect="chain", program=program, fills=_NUMBERS * 2)

    return arithmetic(_LESS), arithmetic(_MUCH), _rate("elementwise", _MUCH)


def values(trial: BenchmarkTrial) -> list[HostArray]:
    """Inputs for a trial, the same each time."""
    specs = trial.program.inputs
    return [_filled(spec, fill, specs[0]) for spec, fill in zip(specs, trial.fills, strict=True)]


def fit(device: Device, measurements: Iterable[Measurement], *, opening: float | None = None) -> Calibration:
    """The calibration that these times say; where several are of one trial, the best counts."""
    return _Fit(device, measurements).calibration(opening)


# -- the programs

_TINY = 64
_SMALL = 1_024
_LESS = 16_384
_MIDDLE = 131_136
_MUCH = 1_048_640
_LARGE = 4_194_368

#: How long rows are. The number of elements is that of whole rows.
_ROW = 992
_NUMBERS: tuple[Fill, ...] = ("numbers",)


def _steps(size: int, count: int) -> Program:
    """Additions and multiplications in turn, each of which needs the one before."""
    recorder = Recorder()
    spec = Spec((size,), "float32")
    value, other = recorder.input(spec), recorder.input(spec)
    for number in range(count):
        value = recorder.add(Binary("multiply" if number % 2 else "add"), value, other)
    return recorder.program([value])


def _launch() -> BenchmarkTrial:
    return BenchmarkTrial(name="launch", aspect="launch", program=_steps(_TINY, 1), fills=_NUMBERS * 2)


def _chain(aspect: Aspect, size: int) -> BenchmarkTrial:
    return BenchmarkTrial(name=aspect, aspect=aspect, program=_steps(size, CHAIN), fills=_NUMBERS * 2)


def _functions() -> BenchmarkTrial:
    """A trial of many functions one after the other, which fuse into one kernel."""
    recorder = Recorder()
    value = recorder.input(Spec((_MUCH,), "float32"))
    for _ in range(FUNCTIONS):
        value = recorder.add(Unary("tanh"), value)
    return BenchmarkTrial(name="functions", aspect="functions", program=recorder.program([value]), fills=_NUMBERS)


def _kernels() -> BenchmarkTrial:
    """Results of different lengths: no engine makes one kernel of them."""
    recorder = Recorder()
    x = recorder.input(Spec((KERNELS * _TINY,), "float32"))
    parts = [recorder.add(Slice((0,), (_TINY * (number + 1),), (1,)), x) for number in range(KERNELS)]
    program = recorder.program([recorder.add(Unary("negative"), part) for part in parts])
    return BenchmarkTrial(name="kernels", aspect="kernels", program=program, fills=_NUMBERS)


def _unheard_of(number: float) -> BenchmarkTrial:
    """A program that no compiler has in its cache, because the number is a part of it."""
    recorder = Recorder()
    x = recorder.input(Spec((_TINY,), "float32"))
    constant = recorder.add(Constant((), "float32", np.asarray(number, "<f4").tobytes()))
    shifted = recorder.add(Binary("add"), x, recorder.add(Broadcast((_TINY,)), constant))
    program = recorder.program([recorder.add(Unary("tanh"), shifted)])
    return BenchmarkTrial(name="compile", aspect="compile", program=program, fills=_NUMBERS)


def _moves(size: int) -> list[BenchmarkTrial]:
    """Two arrays on their way to the device, and their sum on its way back."""
    program = _steps(size, 1)
    into = BenchmarkTrial(name=f"write {size}", aspect="write", program=program, fills=_NUMBERS * 2, amount=8.0 * size)
    back = BenchmarkTrial(name=f"read {size}", aspect="read", program=program, fills=_NUMBERS * 2, amount=4.0 * size)
    return [into, back]


def _wide(trial: BenchmarkTrial) -> BenchmarkTrial:
    """Functions are what takes longest in 64 bits: they are other algorithms there."""
    return msgspec.structs.replace(trial, aspect="wide")


def _products(size: int) -> BenchmarkTrial:
    specs = (Spec((size, size), "float32"), Spec((size, size + 8), "float32"))
    return _operation(size, Contract((1,), (0,)), *specs)


#: What `_rate` and `_products` measure for each class, as it is shown.
LABELS: dict[OperationClass, str] = {
    "creation": "ranges",
    "elementwise": "additions",
    "transcendental": "functions such as tanh",
    "reduce": "row sums",
    "scan": "cumulative sums",
    "movement": "concatenate, transpose",
    "indexing": "indexing",
    "contraction": "matrix products",
    "sort": "row sorts",
    "fourier": "Fourier transforms",
    "linear": "linear solves",
}


def _rate(kind: OperationClass, size: int, dtype: DType = "float32") -> BenchmarkTrial:
    """One operation of a class, as `calibration` says; `size` is in elements, in rows for `linear`."""
    rows = Spec((max(size // _ROW, 1), min(size, _ROW)), dtype)
    flat = Spec((size,), dtype)
    match kind:
        case "elementwise":
            return _operation(size, Binary("add"), flat, flat)
        case "transcendental":
            return _operation(size, Unary("tanh"), flat)
        case "reduce":
            return _operation(size, Reduce("sum", (1,)), rows)
        case "scan":
            return _operation(size, Scan("sum", 1), rows)
        case "movement":
            return _joined(size, rows)
        case "indexing":
            positions = Spec((size // 16,), "int32")
            return _operation(size, Gather(0), Spec((size // 16, 16), dtype), positions, fills=("numbers", "positions"))
        case "sort":
            return _operation(size, Sort(1), rows)
        case "fourier":
            # A power of two, as most transforms that people take care of.
            return _operation(size, Fourier("fft", 1, 512), Spec((size // 512, 512), "complex64"))
        case "linear":
            matrix = Spec((size, size), dtype)
            return _operation(size, Linear("solve"), matrix, Spec((size, 3), dtype), fills=("matrix", "numbers"))
        case "creation":
            return _operation(size, Iota(size, dtype))
    raise ValueError(f"{kind} is measured by another function")


def _joined(size: int, rows: Spec) -> BenchmarkTrial:
    """Half in order and half across. A transposition alone is a view in NumPy and torch, and moves nothing."""
    height, width = rows.shape
    half = height // 2 or 1
    recorder = Recorder()
    straight = recorder.input(Spec((half, width), rows.dtype))
    across = recorder.input(Spec((width, half), rows.dtype))
    last = recorder.add(Concatenate(0), straight, recorder.add(Permute((1, 0)), across))
    return _trial(size, recorder.program([last]), _NUMBERS * 2)


def _operation(size: int, op: Primitive, *specs: Spec, fills: Sequence[Fill] | None = None) -> BenchmarkTrial:
    """A trial of one operation on inputs of these specs."""
    recorder = Recorder()
    last = recorder.add(op, *[recorder.input(spec) for spec in specs])
    return _trial(size, recorder.program([last]), tuple(fills) if fills is not None else _NUMBERS * len(specs))


def _trial(size: int, program: Program, fills: tuple[Fill, ...]) -> BenchmarkTrial:
    """A trial of the operation that gives the result."""
    (last,) = program.outputs
    kind = program.nodes[last].op.operation_class
    amount = amount_of(node_cost(program, last))
    return BenchmarkTrial(
        name=f"{kind} {size}", aspect="rate", program=program, fills=fills, operation=kind, amount=amount
    )


def _filled(spec: Spec, fill: Fill, first: Spec) -> HostArray:
    """The values of a trial's input.

    They are numbers near 1, positions that jump about in memory, or a matrix that is easy to solve.
    """
    if fill == "positions":
        # Steps that share no factor with a length below them reach every element, far apart from one to the next.
        length = first.shape[0]
        step = next(number for number in range(length * 5 // 8 + 1, 2 * length + 2) if math.gcd(number, length) == 1)
        return (np.arange(spec.size, dtype=np.int64) * step % length).astype(spec.dtype).reshape(spec.shape)
    # Repeated, because random numbers take longer than most trials.
    some = np.random.default_rng(5).uniform(0.5, 1.5, min(spec.size, 65_521)).astype(spec.dtype)
    numbers = np.resize(some, spec.shape)
    if fill == "matrix":
        numbers = numbers + np.asarray(2 * spec.shape[-1] * np.eye(spec.shape[-1]), spec.dtype)
    return numbers


# -- what the times say


class _Fit:
    """The measurements by what they are of, with all that is assumed of the device."""

    def __init__(self, device: Device, measurements: Iterable[Measurement]) -> None:
        """Fit a device's calibration; of repeated measurements the shortest counts."""
        self.device = device
        self.before = assumed(device)
        best: dict[tuple[str, Aspect], Measurement] = {}
        for each in measurements:
            key = (each.trial.name, each.trial.aspect)
            if key not in best or each.seconds < best[key].seconds:
                best[key] = each
        self.measurements = list(best.values())

    def calibration(self, opening: float | None) -> Calibration:
        """The calibration, with what was assumed before in place of what was not measured.

        `opening` is the seconds that opening the device took, where it was opened.
        """
        before = self.before
        if not self.measurements:
            return before if opening is None else msgspec.structs.replace(before, open=opening)
        fuses = self._fuses()
        kernel = self._kernel(fuses)
        launch = max(self._smallest() - kernel, _LEAST_SECONDS)
        rates = self._rates(launch)
        measured = {each.trial.operation for each in self._of("rate")}
        return Calibration(
            device=self.device.id,
            source="measured",
            launch=launch,
            kernel=kernel,
            write=self._transfer("write", before.write),
            read=self._transfer("read", before.read),
            rates=rates,
            wide=self._wide(launch, fuses, rates["elementwise"]),
            compile=self._compile(fuses),
            fuses=fuses,
            open=before.open if opening is None else opening,
            function=self._function() if fuses else None,
            addition=self._addition(launch) if fuses else before.addition,
            measured=tuple(kind for kind in before.rates if kind in measured),
        )

    def _of(self, aspect: Aspect) -> list[Measurement]:
        found = [each for each in self.measurements if each.trial.aspect == aspect]
        return sorted(found, key=lambda each: each.trial.amount)

    def _one(self, aspect: Aspect) -> Measurement | None:
        return next(iter(self._of(aspect)), None)

    def _fuses(self) -> bool:
        """By the number of kernels where the engine counts them, else by the time."""
        counted = [each.kernels for aspect in _CHAINS for each in self._of(aspect) if each.kernels is not None]
        if counted:
            return counted[0] <= CHAIN // 2
        found = self._chained(self._smallest())
        if found is None or _SURELY_FUSED <= found[1] / found[0] <= _SURELY_NOT:
            return self.before.fuses
        return found[1] / found[0] < _SURELY_FUSED

    def _chained(self, launch: float) -> tuple[float, float] | None:
        """The seconds of one operation on many elements, and of eight."""
        chain, one = self._one("chain"), self._rate("elementwise")
        return None if chain is None or one is None else (_beyond(launch, one), _beyond(launch, chain))

    def _rate(self, kind: OperationClass) -> Measurement | None:
        """One operation on as many elements as chains have."""
        return next((each for each in self._of("rate") if each.trial.name == f"{kind} {_MUCH}"), None)

    def _function(self) -> float | None:
        several, one = self._one("functions"), self._rate("transcendental")
        if several is None or one is None:
            return None
        more = max(several.seconds - one.seconds, one.seconds / 50, _LEAST_SECONDS)
        return more / (FUNCTIONS - 1) / _MUCH

    def _addition(self, launch: float) -> float:
        """Noise may say that it costs nothing; if it cost more than alone, nothing would have been fused."""
        found = self._chained(launch)
        if found is None:
            return self.before.addition
        return min(max((found[1] / found[0] - 1) / (CHAIN - 1), 0.005), 1.0)

    def _smallest(self) -> float:
        """A call of one kernel that has next to nothing to do."""
        found = self._one("launch")
        return max(found.seconds, 2 * _LEAST_SECONDS) if found else self.before.launch + self.before.kernel

    def _kernel(self, fuses: bool) -> float:
        """Seconds of one kernel among several in a run, kept between a fiftieth and nine tenths of the smallest run."""
        several = self._one("kernels" if fuses else "steps")
        smallest = self._smallest()
        kernel = min(self.before.kernel, smallest / 2)
        if several is not None:
            count = several.kernels or (KERNELS if fuses else CHAIN)
            kernel = several.seconds / max(count - 1, 1)
        # Noise may say that a kernel takes nothing, or more than a call that has one.
        return min(max(kernel, smallest / 50), smallest * 0.9)

    def _compile(self, fuses: bool) -> float:
        found = self._one("compile")
        if found is None:
            return self.before.compile
        return found.seconds / (1 if fuses else _OPERATIONS_UNHEARD_OF)

    def _transfer(self, way: Aspect, before: Transfer) -> Transfer:
        """Latency from the smallest, bandwidth from the others: no more wrong for one of them than for the other."""
        found = self._of(way)
        if not found:
            return before
        latency = before.latency
        if found[0].trial.amount < _LITTLE:
            latency = min(each.seconds for each in found)
            del found[0]
        rates = []
        for each in found:
            # A transfer takes its time even where noise hid it behind the latency.
            moving = max(each.seconds - latency, each.seconds / 10, each.trial.amount / _MOST_BYTES_PER_SECOND)
            rates.append(each.trial.amount / moving)
        rate = _middle(rates) if rates else before.bytes_per_second
        if self.before.device != "numpy":
            # The time of a transfer is a difference of two, and noise can make it next to nothing.
            rate = min(rate, before.bytes_per_second * _IMPLAUSIBLE)
            latency = max(latency, before.latency / _IMPLAUSIBLE)
        return Transfer(latency, rate)

    def _rates(self, launch: float) -> dict[OperationClass, Curve]:
        """The curve of each class of operations.

        Points that contradict each other are left out. A class that was not measured gets its assumed curve, scaled by
        how far similar classes were off.
        """
        measured: dict[OperationClass, list[tuple[float, float]]] = {}
        #: Amounts whose time is more than what any call takes, and noise.
        long: set[tuple[OperationClass, float]] = set()
        for each in self._of("rate"):
            kind = each.trial.operation
            if kind is not None:
                measured.setdefault(kind, []).append((each.trial.amount, _beyond(launch, each)))
                if each.seconds - launch > each.seconds * _TELLING:
                    long.add((kind, each.trial.amount))
        measured = {
            kind: _plausible(kind, points, [amount for other, amount in long if other == kind])
            for kind, points in measured.items()
        }
        amounts = _amounts()
        # Of the smallest amounts most is overhead: they say nothing about larger ones.
        telling = {
            kind: [point for point in points if point[0] > amounts[kind][0]] for kind, points in measured.items()
        }
        factors = {kind: self._factor(kind, points[-1]) for kind, points in telling.items() if points}
        rates: dict[OperationClass, Curve] = {}
        for operation, known in self.before.rates.items():
            factor = factors.get(operation) or _typical(operation, factors)
            guessed = [(amount, known.seconds(amount) * factor) for amount in amounts[operation]]
            rates[operation] = _curve(measured.get(operation, []), guessed)
        return rates

    def _factor(self, kind: OperationClass, point: tuple[float, float]) -> float:
        amount, seconds = point
        return seconds / self.before.rates[kind].seconds(amount)

    def _wide(self, launch: float, fuses: bool, memory: Curve) -> float:
        """The factor from 32 to 64 bits for the function itself, where that can be told from its memory traffic."""
        wide = self._one("wide")
        same = next((each for each in self._of("rate") if wide and each.trial.name == wide.trial.name), None)
        if wide is None or same is None:
            return self.before.wide
        long, short = _beyond(launch, wide), _beyond(launch, same)
        if fuses:
            elements = same.trial.amount
            long = max(long - memory.seconds(16 * elements), long / 5)
            short = max(short - memory.seconds(8 * elements), short / 5)
        # What a device does faster in 64 bits than in 32 was measured badly.
        return max(long / short, 1.0)


_CHAINS: tuple[Aspect, ...] = ("chain", "steps")


def _middle(numbers: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def _beyond(launch: float, measurement: Measurement) -> float:
    """The work alone: at least a small part of the whole, however lucky the clock was with the launch."""
    return max(measurement.seconds - launch, measurement.seconds / 50, _LEAST_SECONDS)


def _amounts() -> dict[OperationClass, list[float]]:
    """For each class the amounts at which it is measured, or would be."""
    amounts: dict[OperationClass, list[float]] = {}
    for trial in trials():
        if trial.aspect == "rate" and trial.operation is not None:
            amounts.setdefault(trial.operation, []).append(trial.amount)
    return {kind: sorted(each) for kind, each in amounts.items()}


def _typical(kind: OperationClass, factors: dict[OperationClass, float]) -> float:
    """The error of the assumptions for the classes most like this one, as a factor; 1 when nothing is known."""
    like = [factor for other, factor in factors.items() if (other in ARITHMETIC) == (kind in ARITHMETIC)]
    some = like or list(factors.values())
    return float(np.median(some)) if some else 1.0


def _plausible(
    kind: OperationClass, points: Sequence[tuple[float, float]], telling: Collection[float]
) -> list[tuple[float, float]]:
    """Arithmetic is not done at less than half the speed just because there is more of it.

    Only the amounts in `telling` say how fast it is: the time of others is a difference of two that are nearly equal.

    Where it seems so, something was in the way: with NumPy, often another process on the cores that its matrix
    products share, which a smaller product does not need.
    """
    if kind not in ARITHMETIC:
        return list(points)
    result: list[tuple[float, float]] = []
    for amount, seconds in points:
        most = min((2 * time * amount / other for other, time in result if other in telling), default=math.inf)
        result.append((amount, min(seconds, most)))
    return result


def _curve(measured: Sequence[tuple[float, float]], guessed: Sequence[tuple[float, float]]) -> Curve:
    """The measured points, and the guessed ones where there is none; time never falls as the amount grows."""
    points: list[tuple[float, float]] = []
    best = math.inf
    # From the largest down: noise only ever adds, so what took no longer than something larger is right.
    for amount, seconds in sorted(measured, reverse=True):
        best = min(best, seconds)
        points.insert(0, (amount, best))
    taken = dict(points)
    for amount, seconds in guessed:
        if amount not in taken:
            least = max((time for other, time in points if other < amount), default=0.0)
            most = min((time for other, time in points if other > amount), default=math.inf)
            taken[amount] = min(max(seconds, least), most)
    result: list[tuple[float, float]] = []
    for amount, seconds in sorted(taken.items()):
        result.append((amount, max(seconds, result[-1][1]) if result else seconds))
    return Curve(tuple(result))
