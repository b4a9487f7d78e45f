"""Computes the chunks of a recorded stream: what a chunk's program is, where it runs, and what happens when it fails.

The first chunk runs at home, as the user's own function where that is certain to mean the same. Other devices have to
be promising by prediction: then they are opened in the background, and get a chunk each. From then on the work goes to
the one that was fastest. Every chunk counts: nothing is computed only to be measured.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anygpu._typing import HostArray
from anygpu.array.core.structure import flatten
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.engines.numpy import lowering
from anygpu.errors import AllocationError, AnyGPUError, DeviceLost, DevicePoisoned, InvalidOption, Unsupported, text_of
from anygpu.fallback_warnings import ran_on_host, warn_fallback
from anygpu.hardware.device import Kind
from anygpu.hardware.selection import select
from anygpu.placement.call_site import first_choice, lacking, no_device
from anygpu.placement.executing import Executing
from anygpu.placement.options import Options
from anygpu.placement.planner import Planner
from anygpu.placement.strategies import merge_runs
from anygpu.placement.values import narrowing
from anygpu.plan.choosing import DOUBT
from anygpu.plan.chunking import corrected, memory_needed
from anygpu.plan.predicting import predict
from anygpu.program.graph import Program
from anygpu.receipts import Attempt, HostOperation, Phases
from anygpu.streams.checking import ChunkCheck
from anygpu.streams.recording import Stream, returned_by
from anygpu.streams.sources import stretch_of
from anygpu.units import readable_seconds
from anygpu.workers.worker import Argument, Handle, Ran

#: A stream that takes less at home does not look for devices, if nobody has looked yet.
_WORTH_LOOKING = 1.0
#: A device has to be so much faster than the one that has the work to get it.
_BETTER = 0.9
#: One that took so much longer for its first chunk gets no other.
_HOPELESS = 8.0
#: After so many chunks one that was less than so much slower is tried again, with one chunk.
_LOOK_AGAIN, _NEAR = 100, 4.0
#: Seconds that preparing one device waits for what the one before can do.
_PATIENCE = 5.0
#: Chunks that say how fast a device is.
_RECENT = 5
#: How often one chunk is run again on a device that was lost meanwhile, and how often it is halved for want of memory.
_AGAIN, _HALVES = 2, 6
#: An array that every chunk needs whole stays on the device if it is at least so large.
_STAYS = 1 << 16


class _Track:
    """How one candidate has done, in seconds for each step along the axis."""

    def __init__(self, predicted: float | None = None, once: float = 0.0) -> None:
        self.predicted = predicted
        self.once = once
        self.recent: deque[float] = deque(maxlen=_RECENT)
        self.runs = 0
        self.done = 0
        #: After how many chunks in all it was tried again.
        self.looked = 0
        self.failed: str | None = None
        #: Set once it is known how fast it is, or that it fails.
        self.known = threading.Event()

    @property
    def rate(self) -> float | None:
        return statistics.median(self.recent) if self.recent else None


class Finished(NamedTuple):
    """A stretch of the results."""

    results: list[HostArray]
    start: int
    stop: int


class ChunkExecutor:
    """The stage that computes."""

    def __init__(self, stream: Stream, planner: Planner, may_open: Callable[[], bool]) -> None:
        self._stream = stream
        self._planner = planner
        #: Whether there is memory for what another device takes by being open.
        self._may_open = may_open
        self._options = stream.options
        self._home = stream.function if stream.options.precision is None else narrowing(stream.function)
        self._homes: dict[int, Program | None] = {}
        self._check = ChunkCheck(planner, stream.function, stream.task, stream.options)
        self._tracks: dict[str, _Track] = {}
        self._considered = False
        self._over = False
        self._next_look = _LOOK_AGAIN
        self._current: str | None = None
        #: Arrays that stay on a device, with the generation of its worker.
        self._kept: dict[tuple[str, int, int], Handle] = {}
        self._total: Ran | None = None
        self._told: dict[HostOperation, None] = {}
        self.attempts: list[Attempt] = []
        #: Of memory, what chunks needed by what was predicted.
        self.correction = 1.0
        #: How long chunks may be after what has happened; `None` while nothing has.
        self.most: int | None = None
        #: Looking for devices, and opening them.
        self.seconds_planning = 0.0
        self.seconds_transferring = 0.0
        self.seconds_computing = 0.0
        self.device_bytes = 0

    # -- memory

    def bytes_for(self, length: int) -> int:
        """Predicted for one chunk where it runs, its inputs and results included."""
        return int(memory_needed(self._stream.piece(0, length)) * self.correction) + 1

    # -- chunks

    def compute(self, chunks: Sequence[HostArray], start: int, stop: int) -> Iterator[Finished]:
        """The results of a chunk, in one stretch or, when there was no memory for that, in several."""
        left = deque([(start, stop)])
        halves = 0
        attempts = 0
        while left:
            begin, end = left.popleft()
            if self.most is not None and end - begin > self.most:
                # It was read before memory ran out.
                left.appendleft((begin + self.most, end))
                end = begin + self.most
            part = [self._part_of(chunk, number, begin - start, end - start) for number, chunk in enumerate(chunks)]
            before = self._planner.clock()
            name = self._choose(end - begin)
            failure: AnyGPUError | None = None
            self.seconds_planning += self._planner.clock() - before
            before = self._planner.clock()
            try:
                results = self._run(name, part, begin, end)
            except AnyGPUError as error:
                # The frames of the failed attempt hold its arrays; they must go before anything else is tried.
                failure = error.with_traceback(None)
            if failure is None:
                attempts = 0
                yield Finished(results, begin, end)
                del results
                continue
            spent = Phases(other=self._planner.clock() - before)
            self.attempts.append(
                Attempt(device=name, phases=spent, error=type(failure).__name__, message=text_of(failure))
            )
            left.appendleft((begin, end))
            if isinstance(failure, AllocationError) and end - begin > 1 and halves < _HALVES and self._stream.way:
                halves += 1
                self.most = (end - begin) // 2
            elif isinstance(failure, DeviceLost | DevicePoisoned) and attempts < _AGAIN and self._tracks[name].done:
                # Its worker is replaced: the same device is no fallback.
                attempts += 1
            else:
                self._next(name, failure)

    def _part_of(self, chunk: HostArray, number: int, start: int, stop: int) -> HostArray:
        position, way = self._stream.inputs[number], self._stream.way
        axis = way.inputs[position] if position is not None and way is not None else None
        return chunk if axis is None else chunk[stretch_of(axis, start, stop)]

    def _run(self, name: str, chunks: Sequence[HostArray], start: int, stop: int) -> list[HostArray]:
        stream, planner, track = self._stream, self._planner, self._tracks[name]
        piece = stream.piece(start, stop)
        begin = planner.clock()
        if name == "numpy" and self._means_the_same(piece, stop - start):
            results = self._at_home(chunks, piece)
            ran = _at_home(results, planner.clock() - begin)
        else:
            if name != "numpy" and not track.done:
                # Which opens the device.
                lack = lacking(planner, name, piece, self._options)
                self.seconds_planning += planner.clock() - begin
                begin = planner.clock()
                if lack is not None:
                    raise Unsupported("way to do all of it", name, instead=lack)
            given = stream.given(chunks, start, stop)
            with planner.using((name,), (track.rate or 0.0) * (stop - start)):
                ran = self._on_device(name, piece, given)
            results = ran.results
            if name != "numpy":
                ended = planner.clock()
                results = self._compared(name, piece, chunks, given, ran, stop - start)
                begin += planner.clock() - ended  # no part of what the device takes
            self._learn_memory(piece, ran)
            self._tell(ran)
        took = planner.clock() - begin - ran.phases.compile
        planner.add_seconds(took)
        if track.runs == 1 and name != "numpy":
            # The first chunk on a device fills caches: it counts until there is another.
            track.recent.clear()
        track.recent.append(took / (stop - start or 1))
        track.runs += 1
        if track.runs > 1:
            track.known.set()
        track.done += stop - start
        self._count(ran)
        return results

    def _compared(
        self, name: str, piece: Program, chunks: Sequence[HostArray], given: list[Any], ran: Ran, length: int
    ) -> list[HostArray]:
        """The device's results, or NumPy's where the device has to be compared with it."""
        generation = self._planner.worker(name, self._options).generation
        home, track = self._tracks.get("numpy"), self._tracks[name]
        if not self._check.is_due(name, generation, length, (home.rate if home is not None else None, track.rate)):
            return ran.results
        if self._means_the_same(piece, length):
            expected = self._at_home(chunks, piece)
        else:
            expected = [np.array(each) for each in lowering.run(piece, given)]
        why = self._check.compare(name, generation, piece, length, given, expected, ran.results)
        if why is not None:
            track.failed = why
        return expected

    def _on_device(self, name: str, piece: Program, given: list[Any]) -> Ran:
        worker = self._planner.worker(name, self._options)
        arguments: list[Argument] = list(given)
        if name != "numpy":
            for position in self._stream.whole:
                if arguments[position].nbytes >= _STAYS:  # type: ignore[union-attr]
                    key = (name, worker.generation, position)
                    if key not in self._kept:
                        self._kept[key] = worker.upload(given[position])
                    arguments[position] = self._kept[key]
        return worker.run(piece, arguments, timeout=self._options.timeout)

    # -- at home

    def _means_the_same(self, piece: Program, length: int) -> bool:
        """Whether the user's function, called with a chunk, computes what the program of that chunk does.

        It does not if it uses the length of the whole, or where it is in it.
        """
        if length not in self._homes:
            self._homes[length] = self._program_at_home(length)
            if len(self._homes) > 8:
                self._homes.pop(next(iter(self._homes)))
        known = self._homes[length]
        return known is not None and known.key == piece.key

    def _program_at_home(self, length: int) -> Program | None:
        stream = self._stream
        shapes: list[HostArray] = []
        for number, position in enumerate(stream.inputs):
            if position is None:
                return None
            whole = stream.values[position]
            shapes.append(self._part_of(whole, number, 0, length))
        with (
            contextlib.suppress(Exception),
            Executing(),
        ):  # whatever it raises for a chunk, the program of the whole is right
            found = trace(stream.function, tuple(shapes), {}, precision=self._options.precision, views=False)
            if isinstance(found, Traced) and self._uses_the_same(found, shapes):
                is_plain = returned_by(found) == list(range(len(found.program.outputs)))
                return found.program if is_plain else None
        return None

    def _uses_the_same(self, found: Traced, shapes: Sequence[HostArray]) -> bool:
        """Whether what it takes beside its arguments is what the whole takes."""
        values = found.inputs(self._stream.function, tuple(shapes), {})
        if values is None or len(values) != len(self._stream.values):
            return False
        used = {position for position in self._stream.inputs if position is not None}
        return all(
            values[n] is other or _same_bytes(values[n], other)
            for n, other in enumerate(self._stream.values)
            if n not in used
        )

    def _at_home(self, chunks: Sequence[HostArray], piece: Program) -> list[HostArray]:
        with Executing():
            value = self._home(*chunks)
        leaves = [np.asarray(each) for each in flatten(value)[0]]
        if [(each.shape, each.dtype.name) for each in leaves] != [(s.shape, s.dtype) for s in piece.results]:
            raise InvalidOption(f"{self._stream.task} returned something else for a chunk than when it was recorded.")
        # The memory of a chunk is used again, so nothing may stay in it.
        return [each.copy() if any(np.may_share_memory(each, chunk) for chunk in chunks) else each for each in leaves]

    # -- where

    def _choose(self, length: int) -> str:
        if not self._tracks:
            self._begin()
        left = self._left
        measured = {name: track.rate for name, track in self._tracks.items() if track.rate and not track.failed}
        if not measured:
            open_ones = [name for name, track in self._tracks.items() if not track.failed]
            return min(open_ones, key=lambda name: self._expected(name, left))
        best = min(measured, key=lambda name: measured[name] or 0.0)
        rate = measured[best] or 0.0
        if not self._considered and not self._check.pinned and (self._planner.awake or left * rate > _WORTH_LOOKING):
            self._considered = True
            self._planner.background.submit(partial(self._prepare, length))
        for name, track in self._tracks.items():
            if not track.failed and self._deserves_a_chunk(name, track, left, length, rate):
                return name
        again = self._to_try_again(rate)
        if again is not None:
            return again
        current = self._current
        if current is None or current not in measured or rate < (measured[current] or 0.0) * _BETTER:
            self._current = best
        return self._current or best

    def _to_try_again(self, best: float) -> str | None:
        """Now and then one that was not much slower: whoever else used the machine then may have gone."""
        runs = sum(track.runs for track in self._tracks.values())
        if runs < self._next_look:
            return None
        self._next_look = runs + _LOOK_AGAIN
        near = [
            (track.looked, name)
            for name, track in self._tracks.items()
            if name != self._current and not track.failed and track.rate and track.rate < _NEAR * best
        ]
        if not near:
            return None
        name = min(near)[1]
        self._tracks[name].looked = runs
        self._tracks[name].recent.clear()
        return name

    @property
    def _left(self) -> int:
        return self._stream.length - sum(track.done for track in self._tracks.values())

    def _expected(self, name: str, left: int) -> float:
        track = self._tracks[name]
        return track.once + left * (track.predicted or 0.0)

    def _deserves_a_chunk(self, name: str, track: _Track, left: int, length: int, best: float) -> bool:
        if track.runs:
            if track.runs == 1 and name != "numpy" and (track.rate or 0.0) < _HOPELESS * best:
                return True
            track.known.set()
            return False
        return track.predicted is not None and left * (best - track.predicted / DOUBT) > length * track.predicted

    def _begin(self) -> None:
        on = self._options.preference.on
        if on[:1] == ("numpy",) or self._options.preference == Options().preference:
            # Nobody has to look for it.
            self._tracks["numpy"] = _Track()
            self._considered = bool(on)
            return
        missing = no_device(self._planner, self._options)
        if missing is not None:
            self._fall_back("what was asked for", "numpy", missing)
            self._tracks["numpy"] = _Track()
            return
        self._considered = True
        self._tracks = self._predicted(max(1, self._stream.length // 64))

    def _prepare(self, length: int) -> None:
        """In the background: open what is promising, and compile for it, while chunks go on where they are."""
        planner, piece = self._planner, self._stream.piece(0, min(length, self._stream.length))
        with contextlib.suppress(AnyGPUError):
            for name, track in sorted(self._predicted(length).items(), key=lambda item: item[1].predicted or 0.0):
                if self._over or planner.background.closed:
                    return
                tracks = self._tracks
                best = min((each.rate for each in tracks.values() if each.rate and not each.failed), default=0.0)
                gain = self._left * (best - (track.predicted or 0.0) / DOUBT)
                if name in tracks or gain < track.once:
                    continue
                if not planner.is_open(name) and not self._may_open():
                    continue
                with planner.trying((name,)), contextlib.suppress(AnyGPUError):
                    if lacking(planner, name, piece, self._options) is None:
                        planner.worker(name, self._options).prepare(piece)
                        # A new table: the computing may be reading the old one.
                        self._tracks = {**self._tracks, name: track}
                        # Whether the next one is promising depends on how this one does.
                        track.known.wait(_PATIENCE)

    def _predicted(self, length: int) -> dict[str, _Track]:
        """Every device that may take part, with what is predicted for a chunk of this length."""
        planner, preference = self._planner, self._options.preference
        piece = self._stream.piece(0, max(1, min(length, self._stream.length)))
        chosen, _ = first_choice(select(planner.machine().devices, preference).chosen, preference.on)
        tracks: dict[str, _Track] = {}
        for device in chosen:
            seconds = planner.expected(piece, device)[1]
            once = 0.0
            if device.id != "numpy":
                calibration = planner.calibration(device)
                once = predict(piece, calibration, compiled=False).phases.compile
                once += 0.0 if planner.is_open(device.id) else calibration.open
            tracks[device.id] = _Track(seconds / max(1, length), once)
        return tracks

    # -- when it fails

    def _next(self, name: str, failure: AnyGPUError) -> None:
        """The device is out of it for the rest of the stream; raises when that is not allowed, or none is left."""
        track = self._tracks[name]
        track.failed = f"{type(failure).__name__}: {text_of(failure)}"
        track.known.set()
        was_meant = bool(track.done) or bool(self._options.preference.on)
        left = [each for each, other in self._tracks.items() if not other.failed]
        if self._options.fallback == "raise" and was_meant:
            raise failure
        if not left:
            if "numpy" in self._tracks:
                raise failure
            self._tracks["numpy"] = _Track()
            left = ["numpy"]
        if was_meant:
            self._fall_back(name, min(left, key=lambda each: self._tracks[each].rate or float("inf")), failure)

    def _fall_back(self, name: str, following: str, failure: AnyGPUError) -> None:
        if self._options.fallback == "raise":
            raise failure
        if self._options.fallback == "warn":
            first = text_of(failure).partition("\n")[0]
            sentence = f"{self._stream.task} runs on {following} instead of {name}: {first}"
            warn_fallback(sentence, cause=(self._stream.task, name, type(failure).__name__))

    # -- afterwards

    def finish(self) -> None:
        """Nothing more has to be prepared."""
        self._over = True
        for track in self._tracks.values():
            track.known.set()

    def _learn_memory(self, piece: Program, ran: Ran) -> None:
        if ran.peak_bytes is not None:
            self.device_bytes = max(self.device_bytes, ran.peak_bytes)
            predicted = int(memory_needed(piece) * self.correction) + 1
            self.correction = max(self.correction, corrected(self.correction, predicted, ran.peak_bytes))

    def _tell(self, ran: Ran) -> None:
        for operation in ran.host_operations:
            if operation not in self._told:
                self._told[operation] = None
                if self._options.fallback == "warn":
                    ran_on_host(operation)

    def _count(self, ran: Ran) -> None:
        phases = ran.phases
        self.seconds_computing += phases.run + phases.compile
        self.seconds_transferring += phases.total - phases.run - phases.compile
        ran = ran._replace(results=[], host_operations=())
        before = self._total
        self._total = ran if before is None else merge_runs([before, ran], [], [before.phases, ran.phases])

    @property
    def total(self) -> Ran:
        """All chunks as one."""
        return self._total if self._total is not None else _at_home([], 0.0)

    @property
    def host_operations(self) -> tuple[HostOperation, ...]:
        return tuple(self._told)

    def kind_of(self, device: str) -> Kind:
        found = self._planner.machine().device(device) if device != "numpy" else None
        return found.kind if found is not None else "cpu"

    @property
    def devices(self) -> dict[str, int]:
        """How far along the axis each device has worked."""
        return {name: track.done for name, track in self._tracks.items() if track.done}

    def reason(self, length: int) -> str:
        """Why most of it ran where it did, for chunks of this length."""
        rates = {name: track.rate for name, track in self._tracks.items() if track.rate is not None}
        done = self.devices
        if not done:
            return "there was nothing to compute."
        main = max(done, key=lambda name: done[name])
        others = sorted((rate, name) for name, rate in rates.items() if name != main and rate is not None)
        own = readable_seconds((rates.get(main) or 0.0) * length)
        if others:
            listed = ", ".join(f"{readable_seconds(rate * length)} on {name}" for rate, name in others)
            return f"a chunk took {own} there, and {listed}."
        if self._considered and not self._options.preference.on:
            return f"a chunk took {own} there, and no other device was predicted to be worth trying, or ready in time."
        if self._options.preference.on:
            return "it was asked for."
        return "the stream was too short to look for other devices."


def _at_home(results: list[HostArray], seconds: float) -> Ran:
    why = "the function ran as it is, in Python, and nothing was counted"
    unknown = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), why)
    return Ran(list(results), Phases(run=seconds), 0, 0, 0, None, None, None, None, (), unknown)


def _same_bytes(one: HostArray, other: HostArray) -> bool:
    """Numbers that are equal need not be the same: 0.0 and -0.0 are not."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype or one.dtype.hasobject:
        return False
    here, there = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other))
    return bool(np.array_equal(here, there))
