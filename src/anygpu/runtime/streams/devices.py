"""Which device computes the next chunk of a stream, learnt from the chunks before it.

The first chunk runs on NumPy. Other devices have to be promising by prediction: then they are opened in the background
and offered to the chooser, the same one that places calls. Every chunk counts: nothing is computed only to be measured.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anygpu.agreement.comparison import judge
from anygpu.agreement.mismatches import keep, mismatch, tell
from anygpu.agreement.trust import code_of
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.base.typing import HostArray
from anygpu.base.units import readable_seconds
from anygpu.calls.executing import Executing
from anygpu.calls.options import Options
from anygpu.engines.catalogue import why_only_when_named
from anygpu.engines.cpu.numpy_loops import rounding
from anygpu.errors import AnyGPUError, InvalidOption, text_of
from anygpu.hardware.device import CPU, Device, DeviceKind
from anygpu.hardware.gpu_presence import software_devices_are_automatic
from anygpu.hardware.selection import select
from anygpu.placement.machine import first_choice, lacking
from anygpu.placement.plan.candidate_history import calls_between_samples
from anygpu.placement.plan.choosing import DOUBT, DeviceChooser
from anygpu.placement.plan.predicting import predict
from anygpu.placement.planner import NO_GPU, Planner, allows_numpy, no_device
from anygpu.program.exactness import why_not
from anygpu.program.graph import Program
from anygpu.program.independence import Cut, cut, independent_cuts
from anygpu.program.primitives import Spec
from anygpu.receipts.receipt import warn_fallback
from anygpu.runtime.streams.sources import span_of

# -- traces a function of whole arrays into a program that can be split along one axis, without the arrays' values


class Returned(NamedTuple):
    """An array that the function returns."""

    #: The index among the results of the program.
    number: int
    spec: Spec
    #: The axis that is split; `None` if the array is the same in every chunk.
    axis: int | None


class Stream(NamedTuple):
    """A traced function of whole arrays, and how it is split."""

    task: str
    function: Callable[..., Any]
    options: Options
    traced: Traced
    #: `None` if there is nothing to split: the axis has length 0 or 1.
    way: Cut | None
    length: int
    #: For each source, its input of the program; `None` if it is not used.
    inputs: tuple[int | None, ...]
    #: The inputs of the program; for sources, a placeholder of the same shape.
    values: list[Any]

    @property
    def program(self) -> Program:
        return self.traced.program

    @property
    def axes(self) -> tuple[int | None, ...]:
        """The axis of each result that is split; `None` if the result is the same in every chunk."""
        return self.way.outputs if self.way is not None else (None,) * len(self.program.outputs)

    def piece(self, start: int, stop: int) -> Program:
        return self.program if self.way is None else cut(self.program, self.way, start, stop)

    def given(self, chunks: Sequence[HostArray], start: int, stop: int) -> list[Any]:
        """The inputs of the program of a piece. Inputs that every piece takes whole are the same objects each time."""
        given = list(self.values)
        for position, axis in enumerate(self.way.inputs if self.way is not None else ()):
            if axis is not None:
                given[position] = given[position][span_of(axis, start, stop)]
        for chunk, number in zip(chunks, self.inputs, strict=True):
            if number is not None:
                given[number] = chunk
        return [np.asarray(each, to_numpy_dtype(s.dtype)) for each, s in zip(given, self.program.inputs, strict=True)]

    @property
    def returned(self) -> list[Returned]:
        """The arrays that the function returns, in order; two of them may be the same result."""
        results = [number for number in returned_by(self.traced) if number is not None]
        return [Returned(number, self.program.results[number], self.axes[number]) for number in results]

    @property
    def whole(self) -> list[int]:
        """Inputs that every piece takes whole."""
        if self.way is None:
            return []
        used = {position for position in self.inputs if position is not None}
        return [n for n, axis in enumerate(self.way.inputs) if axis is None and n not in used]


def stand_in(shape: tuple[int, ...], dtype: np.dtype[Any]) -> HostArray:
    """An array of any size without any memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def recorded(
    task: str, function: Callable[..., Any], shapes: Sequence[HostArray], axis: int, length: int, options: Options
) -> Stream:
    """The function for whole arrays of these shapes; raises unless every span of the axis can be computed alone."""
    with Executing():
        exact = rounding() if options.exact else None
        traced = trace(function, tuple(shapes), {}, precision=options.precision, views=False, exact=exact)
    if isinstance(traced, NotTraceable) and traced.error is not None:
        raise traced.error
    if isinstance(traced, NotTraceable):
        raise InvalidOption(
            f"{task} cannot be streamed, because it cannot be traced: {traced.reason.rstrip('.')}. If "
            "every chunk can be computed without the others, say so with per_chunk=True: then it is called with each."
        )
    values = traced.inputs(function, tuple(shapes), {})
    assert values is not None
    inputs = tuple(next((n for n, value in enumerate(values) if value is shape), None) for shape in shapes)
    if length < 2:
        return Stream(task, function, options, traced, None, length, inputs, values)
    used = [position for position in inputs if position is not None]
    ways = [
        way
        for way in independent_cuts(traced.program)
        if way.length == length and all(way.inputs[position] == axis for position in used)
    ]
    if not ways:
        raise InvalidOption(
            f"{task} cannot be cut along axis {axis}: its results along that axis depend on more than the same stretch "
            "of its arguments, as with a sum, a sort or a shift along it. Stream along another axis, let the function "
            "return what each stretch can tell alone, or promise with per_chunk=True that it may be called with each "
            "chunk as if there were no others."
        )
    way = min(ways, key=lambda each: sum(output is None for output in each.outputs))
    return Stream(task, function, options, traced, way, length, inputs, values)


def returned_by(traced: Traced) -> list[int | None]:
    """Returns for each leaf of the return value its index among the program's results; `None` if it is not a result."""
    return traced.results_returned


# -- comparison with NumPy before a device is trusted, and at intervals afterwards


class ChunkCheck:
    """Tracks which devices agreed with NumPy, by length of chunk."""

    def __init__(self, planner: Planner, function: Callable[..., Any], task: str, options: Options) -> None:
        """Makes the checks of one stream; nothing has agreed yet, unless the planner knows of a mismatch."""
        self._planner = planner
        self._function = function
        self._task = task
        self._check = options.check
        self._is_automatic = allows_numpy(options)
        #: By device, generation and length: chunks since the last comparison, and the number of comparisons.
        self._agreed: dict[tuple[str, int, int], list[int]] = {}

    @property
    def pinned(self) -> bool:
        """Whether a device was wrong for this function, so that it stays on NumPy."""
        return self._is_automatic and code_of(self._function) in self._planner.pinned

    def is_due(self, device: str, generation: int, length: int, rates: tuple[float | None, float | None]) -> bool:
        """Whether this chunk has to be computed on NumPy too. `rates` are the times of NumPy and the device."""
        if self._check == "always":
            return True
        if self._check == "off" or not self._is_automatic:
            return False
        known = self._agreed.get((device, generation, length))
        if known is None:
            return True
        known[0] += 1
        home, there = rates
        if not home or not there:
            return False
        return known[0] > calls_between_samples(home, there, 0.0, samples=known[1])

    def compare(
        self,
        device: str,
        generation: int,
        piece: Program,
        length: int,
        given: Sequence[Any],
        expected: Sequence[HostArray],
        results: Sequence[HostArray],
    ) -> str | None:
        """`None` if the device agrees, else the reason why it gets no more chunks."""
        inputs = [np.asarray(each) for each in given]
        found = judge(piece, inputs, tuple(expected), [np.asarray(each) for each in results], tuple)
        key = (device, generation, length)
        if found.verdict == "agree":
            before = self._agreed.get(key)
            self._agreed[key] = [0, 0 if before is None else before[1] + 1]
            return None
        if found.difference is None:
            return f"{device} cannot be compared with NumPy: {found.why}."
        facts = self._planner.device(device)
        is_first = key not in self._agreed
        made = mismatch(self._task, device, facts, piece, inputs, found.difference, before_use=is_first)
        if self._planner.disagreed(made, code_of(self._function)):
            keep(made)
            error = tell(made, self._function)
            if error is not None:
                raise error
        return made.reason


# -- the choice of a device


#: A stream that takes fewer seconds on NumPy does not probe for devices, unless that was done already.
_WORTH_LOOKING = 1.0
#: Seconds that preparing one device waits for measurements of the one before.
_PATIENCE = 5.0
#: The first chunk on a device fills its caches, so it may take this much longer than later ones.
_COLD = 4.0


class _Offer(NamedTuple):
    """A device that may take chunks, predicted in seconds for each step along the axis."""

    device: str
    predicted: float
    #: Seconds before its first chunk: opening it, compiling.
    once: float
    #: Set once its speed is known, or that it fails.
    judged: threading.Event


class StreamDevices:
    """The devices of one stream. All methods but `_prepare` run on the thread that computes."""

    def __init__(self, stream: Stream, planner: Planner, check: ChunkCheck, may_open: Callable[[], bool]) -> None:
        """Makes the choice of one stream's devices, which begins on NumPy.

        `may_open` tells whether there is memory for another device. `_cold` has the rate of a device's first chunk,
        which counts only until there is another: it includes what a first run takes.
        """
        self._stream = stream
        self._planner = planner
        self._check = check
        #: Whether there is memory for the library of another device.
        self._may_open = may_open
        self._options = stream.options
        self._chooser: DeviceChooser | None = None
        #: Devices that were prepared in the background, for the thread that computes.
        self._prepared: deque[_Offer] = deque()
        self._offers: dict[str, _Offer] = {}
        self._considered = False
        self._over = False
        #: Seconds for each step of the first chunk.
        self._cold: dict[str, float] = {}
        #: Steps along the axis that each device has computed.
        self.done: dict[str, int] = {}

    # -- choosing

    def choose(self, length: int) -> str:
        """The device for a chunk of this length."""
        chooser = self._chooser or self._begin()
        while self._prepared:
            self._take(chooser, self._prepared.popleft())
        best = self._best_rate()
        if best is not None and not self._considered and not self._check.pinned and self._may_consider(best):
            self._considered = True
            self._planner.background.submit(partial(self._prepare, length))
        return chooser.choose().candidate

    def _may_consider(self, rate: float) -> bool:
        """Whether devices are known, or a look at the machine is worth its time for what is left at this rate."""
        if self._planner.awake:
            return True
        is_long = self._left * rate > _WORTH_LOOKING
        if is_long and not software_devices_are_automatic():
            self._planner.wake()
            return False
        return is_long

    def rate(self, device: str) -> float | None:
        """Seconds for each step, as measured."""
        track = self._chooser.tracks.get(device) if self._chooser is not None else None
        if track is None or track.suspended:
            return None
        return track.estimate if track.estimate is not None else self._cold.get(device)

    def measured(self, device: str, steps: int, seconds: float) -> None:
        """The device has computed a chunk."""
        chooser = self._chooser or self._begin()
        track, rate = chooser.tracks[device], seconds / (steps or 1)
        is_first = device not in self.done
        if steps:
            self.done[device] = self.done.get(device, 0) + steps
        if track.suspended:
            return
        if is_first and device != "numpy":
            self._cold[device] = rate
            chooser.tried(device, rate / _COLD)
        else:
            chooser.measured(device, rate)
        if track.known and device in self._offers:
            self._offers[device].judged.set()

    def _begin(self) -> DeviceChooser:
        """Makes the chooser of the stream's devices.

        It starts with NumPy alone if that was asked for, or if nothing was: other devices come in when they are
        prepared. Otherwise every device that the options allow is predicted for a chunk now.
        """
        on = self._options.preference.on
        # Agreement with NumPy is checked by `ChunkCheck`, chunk by chunk.
        if on[:1] == ("numpy",) or self._options.preference == Options().preference:
            self._considered = bool(on)
            self._chooser = DeviceChooser("numpy", checked=False)
            return self._chooser
        missing = no_device(self._planner, self._options)
        if missing is not None:
            self._fall_back("what was asked for", "numpy", missing)
            self._chooser = DeviceChooser("numpy", checked=False)
            return self._chooser
        self._considered = bool(on) or self._planner.awake or software_devices_are_automatic()
        self._chooser = DeviceChooser(None, checked=False)
        for offer in self._predicted(max(1, self._stream.length // 64)):
            self._take(self._chooser, offer)
        return self._chooser

    def _take(self, chooser: DeviceChooser, offer: _Offer) -> None:
        self._offers[offer.device] = offer
        chooser.offer(offer.device, offer.predicted)

    def _best_rate(self) -> float | None:
        chooser = self._chooser
        rates = [self.rate(name) for name in list(chooser.tracks)] if chooser is not None else []
        return min((rate for rate in rates if rate is not None), default=None)

    @property
    def _left(self) -> int:
        return self._stream.length - sum(self.done.values())

    # -- preparing

    def _prepare(self, length: int) -> None:
        """Opens devices that are promising, and compiles for them, while chunks go on elsewhere.

        Runs in the background. Each is judged by its first chunk before the next one is opened, as that decides whether
        another one is worth it.
        """
        planner, piece = self._planner, self._stream.piece(0, min(length, self._stream.length))
        with contextlib.suppress(AnyGPUError):
            for offer in sorted(self._predicted(length), key=lambda offer: offer.predicted):
                name = offer.device
                if self._over or planner.background.closed:
                    return
                gain = self._left * ((self._best_rate() or 0.0) - offer.predicted / DOUBT)
                if name == "numpy" or gain < offer.once:
                    continue
                if not planner.is_open(name) and not self._may_open():
                    continue
                with planner.trying((name,)), contextlib.suppress(AnyGPUError):
                    if lacking(planner.worker_of(self._options), name, piece) is None:
                        planner.worker(name, self._options).prepare(piece)
                        self._prepared.append(offer)
                        # Whether the next device is promising depends on the speed of this one.
                        offer.judged.wait(_PATIENCE)

    def _predicted(self, length: int) -> list[_Offer]:
        """Every device that the options allow, with predictions for a chunk of this length."""
        planner, preference = self._planner, self._options.preference
        piece = self._stream.piece(0, max(1, min(length, self._stream.length)))
        chosen, _ = first_choice(select(planner.machine_for(self._options).devices, preference).chosen, preference.on)
        offers: list[_Offer] = []
        exact = self._options.exact
        for device in chosen:
            if not preference.on and why_only_when_named(device) is not None:
                continue
            if (exact or not preference.on) and not _decides_alike(device, piece, throughout=exact):
                continue
            seconds = planner.expected(piece, device)[1]
            once = 0.0
            if device.id != "numpy":
                calibration = planner.calibration(device)
                once = predict(piece, calibration, compiled=False).phases.compile
                once += 0.0 if planner.is_open(device.id) else calibration.open
            offers.append(_Offer(device.id, seconds / max(1, length), once, threading.Event()))
        return offers

    def finish(self) -> None:
        """No more devices have to be prepared."""
        self._over = True
        for offer in (*self._offers.values(), *self._prepared):
            offer.judged.set()

    # -- failures

    def exclude(self, device: str, failure: AnyGPUError) -> None:
        """The device gets no more chunks. Raises the failure if no device is left, or the options allow no other."""
        chooser = self._chooser or self._begin()
        was_meant = device in self.done or bool(self._options.preference.on)
        if device == "numpy" or (self._options.fallback == "raise" and was_meant):
            raise failure
        self.distrust(device, f"{type(failure).__name__}: {text_of(failure)}")
        left = [name for name, track in chooser.tracks.items() if not track.suspended]
        if not left:
            chooser.offer("numpy", 0.0)
            left = ["numpy"]
        if was_meant:
            self._fall_back(device, min(left, key=lambda name: self.rate(name) or float("inf")), failure)

    def distrust(self, device: str, why: str) -> None:
        """The device gets no more chunks."""
        chooser = self._chooser or self._begin()
        chooser.failed(device, why)
        if device in self._offers:
            self._offers[device].judged.set()

    def _fall_back(self, device: str, following: str, failure: AnyGPUError) -> None:
        """Warns that a device is left for another one, or raises the failure, as the options say."""
        if self._options.fallback == "raise":
            raise failure
        if self._options.fallback == "warn":
            first = text_of(failure).partition("\n")[0]
            sentence = f"{self._stream.task} runs on {following} instead of {device}: {first}"
            warn_fallback(sentence, cause=(self._stream.task, device, type(failure).__name__))

    # -- for receipts

    def kind_of(self, device: str) -> DeviceKind:
        found = self._planner.machine_for(self._options).device(device) if device != "numpy" else None
        return found.kind if found is not None else "cpu"

    def reason(self, length: int) -> str:
        """Why most of the stream ran where it did, for chunks of this length."""
        if not self.done:
            return "there was nothing to compute."
        main = max(self.done, key=lambda name: self.done[name])
        rates = [(rate, name) for name in self.done if (rate := self.rate(name)) is not None]
        own = readable_seconds((self.rate(main) or 0.0) * length)
        others = sorted((rate, name) for rate, name in rates if name != main)
        if others:
            listed = ", ".join(f"{readable_seconds(rate * length)} on {name}" for rate, name in others)
            return f"a chunk took {own}, compared with {listed}."
        if self._considered and not self._options.preference.on:
            return f"a chunk took {own}; no other device was predicted to be faster, or was ready in time."
        if self._options.preference.on:
            return "it was asked for."
        if self._planner.has_nowhere_to_look:
            return NO_GPU
        return "the stream was too short to look for other devices."


def _decides_alike(device: Device, program: Program, *, throughout: bool) -> bool:
    """Return whether results that depend on a float's last bit are NumPy's, as they must be where no device was named.

    With `throughout` every bit has to be NumPy's.
    """
    how = rounding() if device.id == CPU else "free"
    return device.id == "numpy" or why_not(program, how, throughout=throughout) is None
