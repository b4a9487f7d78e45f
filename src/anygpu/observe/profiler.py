"""A profile of a script: each call of an offloaded function by the user's own line, and all other time by samples.

`UsersFiles` finds the user's line in a stack, `LineSampler` samples it in a thread, `Operations` divides the time of
programs among their operations, and `Profiler` hears all calls and makes the `Profile` of it.
"""

from __future__ import annotations

import linecache
import site
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from anygpu.base import events
from anygpu.observe.profile import FunctionProfile, LineProfile, OperationProfile, Profile
from anygpu.observe.snapshot import ended
from anygpu.observe.statistics import CallTally
from anygpu.receipts.notes import Failure, Origin, Seen
from anygpu.receipts.receipt import PHASES, Phases, Receipt

if TYPE_CHECKING:
    from anygpu.program.graph import Program


# -- samples the line of the user's own code that the main thread is at
#
# Calls of offloaded functions are measured, to the microsecond, whether or not a sample meets them; samples say only
# how the seconds of a line's calls are spread over the lines inside of the function, and how all other seconds are
# spread over lines. So the seconds of all lines are those of the script, and calls are exact.


#: Seconds between two samples.
INTERVAL = 0.005

SourceLine = tuple[str, int]

#: Where calls that leave receipts come in: modules of ours, and functions of theirs.
_MODULES = frozenset(("anygpu.calls.offload", "anygpu.pytorch.step"))
_ENTRIES = frozenset(("__call__", "run"))


class ThreadPosition(NamedTuple):
    """The position of a thread."""

    #: The innermost line of the user's own code.
    line: SourceLine | None
    #: The line that made the innermost call of an offloaded function, and the one that made the outermost.
    caller: SourceLine | None
    outermost: SourceLine | None
    #: How many such calls are inside of each other.
    depth: int


class UsersFiles:
    """Decides which files are the user's own: not Python's, not installed, and not anygpu's.

    The answer for a file is remembered, because samples ask for the same files again and again.
    """

    def __init__(self, script: str) -> None:
        self._known = {script: True}
        folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        if site.ENABLE_USER_SITE:
            folders.append(site.getusersitepackages())
        folders.append(str(Path(__file__).parents[1]))
        self._folders = tuple({str(Path(each).resolve()) + "/" for each in folders if each})

    def has(self, file: str) -> bool:
        """Whether a file is the user's own; code without a file, as made by `exec`, is not."""
        known = self._known.get(file)
        if known is None:
            # Code that was made while running has no file: "<string>", "<frozen importlib._bootstrap>".
            known = not file.startswith("<") and not self._is_installed(file)
            self._known[file] = known
        return known

    def _is_installed(self, file: str) -> bool:
        path = str(Path(file).resolve()).replace("\\", "/")
        return "/site-packages/" in path or path.startswith(self._folders)

    def where(self, frame: FrameType | None) -> ThreadPosition:
        """The position of a thread in the user's own files, and how many calls of ours it is inside of.

        Walks the whole stack from `frame` outwards. A call of ours is a frame of `_ENTRIES` in one of `_MODULES`.
        """
        line: SourceLine | None = None
        caller: SourceLine | None = None
        outermost: SourceLine | None = None
        depth, wanted = 0, False
        known = self._known
        while frame is not None:
            code = frame.f_code
            if code.co_name in _ENTRIES and frame.f_globals.get("__name__") in _MODULES:
                depth, wanted = depth + 1, True
            else:
                file = code.co_filename
                users = known.get(file)
                if users or (users is None and self.has(file)):
                    here: SourceLine = (file, frame.f_lineno or code.co_firstlineno)
                    if line is None:
                        line = here
                    if wanted:
                        wanted, outermost = False, here
                        if caller is None:
                            caller = here
            frame = frame.f_back
        return ThreadPosition(line, caller, outermost, depth)


class LineSampler:
    """Samples the main thread, in a `with` block.

    A daemon thread looks at the main thread's stack every `INTERVAL` seconds, as far as the interpreter lets it run.
    The block has to be entered on the thread that is to be sampled.
    """

    def __init__(self, files: UsersFiles, measured: Callable[[], float], clock: Callable[[], float]) -> None:
        """`measured` are the seconds of calls so far that the main thread waited for."""
        self._files = files
        self._measured = measured
        self._clock = clock
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        #: Seconds by line outside of calls; and inside, by the line that made the call, and the line inside.
        self.outside: dict[SourceLine, float] = {}
        self.inside: dict[SourceLine, dict[SourceLine, float]] = {}
        self.samples = 0
        self.seconds = 0.0
        #: Seconds that samples have seen of the call that is under way.
        self._under_way = 0.0

    def __enter__(self) -> LineSampler:
        main = threading.get_ident()
        self._begin = self._clock()
        self._thread = threading.Thread(target=self._work, args=(main,), name="anygpu-profile", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = self._clock() - self._begin
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _work(self, main: int) -> None:
        """The sampler's thread: one sample after the other until the block ends."""
        last, calls = self._begin, self._measured()
        while not self._over.wait(INTERVAL):
            frame = sys._current_frames().get(main)
            where = self._files.where(frame)
            del frame  # it holds the script's arrays
            now, sum_of_calls = self._clock(), self._measured()
            self.add(where, now - last, sum_of_calls - calls)
            last, calls = now, sum_of_calls

    def add(self, where: ThreadPosition, elapsed: float, measured: float) -> None:
        """Adds a sample after `elapsed` seconds, in which calls of `measured` seconds ended.

        Inside of a call the seconds go to the line that made the outermost call. Outside, the seconds of calls that
        ended since the last sample are taken off first: they are measured, and not to be counted twice.
        """
        self.samples += 1
        line = where.line
        if line is None:
            return
        if where.outermost is not None:
            spread = self.inside.setdefault(where.outermost, {})
            spread[line] = spread.get(line, 0.0) + elapsed
            self._under_way += elapsed - measured
        else:
            # The samples of a line that only runs between short calls still count for something.
            rest = max(elapsed - max(0.0, measured - self._under_way), 0.01 * elapsed)
            self.outside[line] = self.outside.get(line, 0.0) + rest
            self._under_way = 0.0


def seconds_by_line(
    seconds: float,
    calls: dict[SourceLine, float],
    outside: dict[SourceLine, float],
    inside: dict[SourceLine, dict[SourceLine, float]],
    first: SourceLine,
) -> dict[SourceLine, float]:
    """The seconds of a script by line: those of `calls` by the line that made them, and all others, as sampled.

    What no sample has met belongs to the `first` line.
    """
    found: dict[SourceLine, float] = {}

    def give(line: SourceLine, part: float) -> None:
        found[line] = found.get(line, 0.0) + part

    for caller, took in calls.items():
        spread = inside.get(caller) or {caller: 1.0}
        whole = sum(spread.values())
        for line, part in spread.items():
            give(line, took * part / whole)
    rest = max(0.0, seconds - sum(calls.values()))
    whole = sum(outside.values())
    for line, part in outside.items():
        give(line, rest * part / whole)
    if not whole and rest:
        give(first, rest)
    return found


#: Arithmetic that takes about as long as moving a byte does.
_FLOPS_OF_A_BYTE = 10
#: Programs that are remembered.
_MOST = 2000


class _Part(NamedTuple):
    operation: str
    line: str | None
    #: Of 1.
    part: float


class Operations:
    """Adds up the seconds of programs by program and device, and divides them among their operations.

    Programs are remembered when they are recorded, `_MOST` at most; a program that is not known is one operation.
    """

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}
        #: Seconds and runs by program and device.
        self._runs: dict[tuple[str, str], list[float]] = {}

    def recorded(self, program: Program) -> None:
        """Remembers a program by its key, as long as there is room."""
        if len(self._programs) < _MOST:
            self._programs[program.key] = program

    def ran(self, receipt: Receipt) -> None:
        """Adds the run of a receipt's program: by the device's own clock, or the phase run where there is none."""
        if receipt.program is None:
            return
        seconds = receipt.device_seconds if receipt.device_seconds is not None else receipt.phases.run
        known = self._runs.setdefault((receipt.program, receipt.device), [0.0, 0])
        known[0] += seconds
        known[1] += 1

    def profile(self) -> tuple[OperationProfile, ...]:
        """The operations of all programs by user's line and device, the longest first."""
        found: dict[tuple[str, str | None, str], list[float]] = {}
        for (key, device), (seconds, runs) in self._runs.items():
            program = self._programs.get(key)
            parts = [_Part("a program", None, 1.0)] if program is None else parts_of(program)
            for part in parts:
                known = found.setdefault((part.operation, part.line, device), [0.0, 0])
                known[0] += seconds * part.part
                known[1] += runs
        operations = [
            OperationProfile(operation=operation, device=device, line=line, seconds=seconds, runs=int(runs))
            for (operation, line, device), (seconds, runs) in found.items()
        ]
        return tuple(sorted(operations, key=lambda each: -each.seconds))


def parts_of(program: Program) -> list[_Part]:
    """The operations of a program that do something, with the part of its work that each is; the parts add up to 1.

    Work is the bytes that an operation reads and writes, and its arithmetic at `_FLOPS_OF_A_BYTE`.
    """
    from anygpu.program.graph import node_costs

    weights: dict[tuple[str, str | None], float] = {}
    for node, cost, line in zip(program.nodes, node_costs(program), program.lines, strict=True):
        if cost.kind in ("input", "creation"):
            continue
        work = cost.bytes_read + cost.bytes_written + cost.flops / _FLOPS_OF_A_BYTE
        if work:
            key = (node.op.label, None if line is None else f"{line[0]}:{line[1]}")
            weights[key] = weights.get(key, 0.0) + work
    whole = sum(weights.values())
    if not whole:
        return [_Part("moving data", None, 1.0)]
    return [_Part(operation, line, weight / whole) for (operation, line), weight in weights.items()]


_clock = time.perf_counter
_PHASES = (*PHASES, "other")
#: Where an engine does not count its compilations, a call compiled if it took longer than looking a program up does.
_COMPILED = 1e-3
#: Lines and operations that are kept, the longest first.
MOST_LINES, MOST_OPERATIONS = 1000, 200
#: Source lines longer than this are cut.
_LONGEST = 300


class _Tally(CallTally):
    """Calls from one line, of one function, on one device, without the calls that they make."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.device_seconds: float | None = None
        #: Compilations after the first of the function on the device.
        self.recompilations = 0

    def add(self, phases: Phases, seconds: float, inner: float) -> None:
        """Adds a call. `inner` are the seconds of calls that were made inside; they are taken off its phase run."""
        self.calls += 1
        self.seconds += seconds - inner
        for name in _PHASES:
            self.phases[name] += getattr(phases, name)
        self.phases["run"] -= inner

    def add_receipt(self, receipt: Receipt) -> None:
        """Adds the counts of a receipt, and the seconds by the device's own clock if it has some."""
        super().add_receipt(receipt)
        if receipt.device_seconds is not None:
            self.device_seconds = (self.device_seconds or 0.0) + receipt.device_seconds

    def profile(self, function: str, device: str, others: Sequence[_Tally]) -> FunctionProfile:
        """The profile of a function whose calls were made from several lines."""
        whole, every = CallTally(), (self, *others)
        for tally in every:
            whole.merge(tally)
        clocks = [tally.device_seconds for tally in every if tally.device_seconds is not None]
        sums = whole.sums()
        for name in ("host_operations", "compilations"):
            del sums[name]
        return FunctionProfile(
            function=function,
            device=device,
            seconds=sum(tally.seconds for tally in every),
            device_seconds=sum(clocks) if clocks else None,
            recompilations=sum(tally.recompilations for tally in every),
            **(sums | {"errors": sum(whole.errors.values())}),
        )


class Profiler:
    """Profiles the main thread inside of a `with` block, and the calls of all threads until `finish`.

    It has to be made on the main thread. A lock guards the tallies, because calls end on any thread.
    """

    def __init__(self, script: str) -> None:
        self._script = script
        self._files = UsersFiles(script)
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._tallies: dict[tuple[SourceLine | None, str, str], _Tally] = {}
        #: Functions and devices that have compiled before: doing so again is worth a mention.
        self._compiled: set[tuple[str, str]] = set()
        #: Seconds of calls that were made inside of one that has not ended, by thread and depth.
        self._inner: dict[tuple[int, int], float] = {}
        #: Seconds that the main thread waited, by the line that made the outermost call.
        self._waited: dict[SourceLine, float] = {}
        self._waited_in_all = 0.0
        self._operations = Operations()
        self._sampler = LineSampler(self._files, lambda: self._waited_in_all, _clock)

    def __enter__(self) -> Self:
        events.calls.append(self)
        events.programs.append(self._operations.recorded)
        self._sampler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sampler.__exit__(kind, error, traceback)

    # -- what is heard

    def __call__(self, seen: Seen, origin: Origin | None) -> None:
        """Takes in a call that has ended, on the thread on which it ended.

        A submitted task belongs to the line that submitted it, any other to the innermost line of the user's that is on
        the stack.
        """
        thread = threading.get_ident()
        if origin is not None:
            line, depth, outermost = origin.line, 1, None
        else:
            where = self._files.where(sys._getframe(1))
            line, depth, outermost = where.caller or where.line, where.depth, where.outermost
        with self._lock:
            self._add(seen, line, thread, depth, outermost)

    def _add(self, seen: Seen, line: SourceLine | None, thread: int, depth: int, outermost: SourceLine | None) -> None:
        """Adds a call that has ended to its line, without the time of calls inside of it.

        The caller holds the lock. Inner calls end before the outer one, so their seconds wait under their thread and
        depth.
        """
        task, device, seconds, phases, *_ = ended(seen)
        inner = self._inner.pop((thread, depth + 1), 0.0)
        if depth > 1:
            self._inner[thread, depth] = self._inner.get((thread, depth), 0.0) + seconds
        elif outermost is not None and thread == self._main:
            # A training step's data was waited for before the step was called, on the line of the loop.
            here = seconds - seen.phases.queue if isinstance(seen, Receipt) and seen.parts else seconds
            self._waited[outermost] = self._waited.get(outermost, 0.0) + here
            self._waited_in_all += here
        key = (line, task, device)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = _Tally()
        tally.add(phases, seconds, min(inner, phases.run))
        if isinstance(seen, Failure):
            tally.add_error(seen.error)
        elif isinstance(seen, Receipt):
            tally.add_receipt(seen)
            self._operations.ran(seen)
            if _has_compiled(seen):
                tally.recompilations += (task, device) in self._compiled
                self._compiled.add((task, device))

    # -- what comes of it

    def finish(self, arguments: Sequence[str], exit_status: int) -> Profile:
        """The profile. Nothing is heard from now on."""
        if self in events.calls:
            events.calls.remove(self)
            events.programs.remove(self._operations.recorded)
        sampler = self._sampler
        with self._lock:
            phases = dict.fromkeys(_PHASES, 0.0)
            for tally in self._tallies.values():
                for name, took in tally.phases.items():
                    phases[name] += took
            return Profile(
                script=self._script,
                arguments=tuple(arguments),
                seconds=sampler.seconds,
                exit_status=exit_status,
                call_seconds=self._waited_in_all,
                samples=sampler.samples,
                interval=sampler.seconds / max(1, sampler.samples),
                lines=self._lines(),
                functions=self._functions(),
                operations=self._operations.profile()[:MOST_OPERATIONS],
                phases=phases,
            )

    def _lines(self) -> tuple[LineProfile, ...]:
        """The lines that took time or made calls, the longest first, `MOST_LINES` at most."""
        sampler = self._sampler
        first = (self._script, 1)
        seconds = seconds_by_line(sampler.seconds, self._waited, sampler.outside, sampler.inside, first)
        tallies: dict[SourceLine, list[tuple[str, _Tally]]] = {}
        for (line, _, device), tally in self._tallies.items():
            tallies.setdefault(line or first, []).append((device, tally))
        lines = [_line(line, seconds.get(line, 0.0), tallies.get(line, [])) for line in {*seconds, *tallies}]
        lines.sort(key=lambda each: (-each.seconds, -each.call_seconds, each.file, each.line))
        return tuple(lines[:MOST_LINES])

    def _functions(self) -> tuple[FunctionProfile, ...]:
        """The functions by device, added up over the lines that called them, the longest first."""
        found: dict[tuple[str, str], list[_Tally]] = {}
        for (_, function, device), tally in self._tallies.items():
            found.setdefault((function, device), []).append(tally)
        functions = [first.profile(*key, others) for key, (first, *others) in found.items()]
        return tuple(sorted(functions, key=lambda each: -each.seconds))


def _line(line: SourceLine, seconds: float, tallies: Sequence[tuple[str, _Tally]]) -> LineProfile:
    """The profile of one line: its seconds, its calls, and the seconds on each device."""
    devices: dict[str, float] = {}
    for device, tally in tallies:
        devices[device] = devices.get(device, 0.0) + tally.seconds
    made = [tally for _, tally in tallies]
    return LineProfile(
        file=line[0],
        line=line[1],
        code=linecache.getline(*line).strip()[:_LONGEST],
        seconds=seconds,
        calls=sum(tally.calls for tally in made),
        call_seconds=sum(tally.seconds for tally in made),
        devices=devices,
        bytes_to_device=sum(tally.bytes_to_device for tally in made),
        bytes_to_host=sum(tally.bytes_to_host for tally in made),
        recompilations=sum(tally.recompilations for tally in made),
    )


def _has_compiled(receipt: Receipt) -> bool:
    """Whether a call compiled: by the engine's count, or by the time of the phase where the engine has none."""
    if receipt.driver is not None:
        return receipt.driver.compilations > 0
    return receipt.phases.compile > _COMPILED
