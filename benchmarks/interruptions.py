"""Ctrl-C at any moment: `python -m benchmarks.interruptions --count 20000 [--what submit,store] [--seed 1] [--check]`.

Half of the interruptions come at random, by the signal of a timer after some microseconds. The other half is
exhaustive: a call is interrupted at one moment after the other at which Python calls handlers, until every one was hit,
and then again. Every third one is an ordinary exception, as the handler of a user raises it. Event loops are not
interrupted, which they do not survive by themselves: their tasks are cancelled, turn by turn and at any moment.

After each one, another thread finds out whether something was lost or left behind. Threads, files, children and shared
memory are counted at the end of each kind.
"""

from __future__ import annotations

import faulthandler
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from benchmarks.interruption_scenarios import PATIENCE, SCENARIOS, Broken
from benchmarks.report import Figure, options_parser, publish, say
from benchmarks.soak_watch import held, left_over
from tests.support.interrupting import AfterSeconds, Alarm, AtMoment, Place, places_of

#: Kinds whose calls are long, and their part of the interruptions that others get.
LONG = {"asyncio": 0.5, "offload": 0.5, "offload_torch": 0.1, "offload_opencl": 0.1, "stream": 0.1}
#: Nothing takes so long: then the stacks of all threads are shown, and the process ends.
_HUNG_SECONDS = 4 * PATIENCE
_MODES: dict[str, Any] = np.geterr()  # type: ignore[assignment]
#: After so many failures of one kind the rest is not tried.
_ENOUGH = 5


class Told(msgspec.Struct):
    """What became of the interruptions of one kind."""

    kind: str
    interruptions: int = 0
    #: Of these, in the exhaustive way; and how many moments all of its calls have.
    exhaustive: int = 0
    moments: int = 0
    #: Inside of finalizers, where Python itself drops what is raised.
    dropped: int = 0
    #: Raised, and neither seen by the caller nor dropped by Python.
    swallowed: int = 0
    broken: list[str] = msgspec.field(default_factory=list)
    left: list[str] = msgspec.field(default_factory=list)


class Itself:
    """A call that interrupts itself."""

    def __init__(self) -> None:
        self.where: list[str] = []

    def run(self, call: Callable[[], object]) -> bool:
        call()
        return True


class Interrupter:
    """Interrupts the calls of one scenario, and checks it after each interruption."""

    def __init__(self, kind: str, seed: int, told: Told) -> None:
        self._kind = kind
        self.scenario = SCENARIOS[kind]()
        self._random = random.Random(f"{seed} {kind}")
        self.told = told
        self._seconds: dict[str, float] = {}

    def at_random(self, count: int) -> None:
        done = 0
        while done < count and len(self.told.broken) < _ENOUGH:
            works = self.scenario.works
            work = works[done % len(works)]
            longest = self._seconds.get(work.__name__)
            if longest is None:
                longest = _seconds_of(work)
            way = AfterSeconds(self._random.uniform(0, 1.1 * longest), self._exception())
            if self._interrupt(way, work):
                done += 1
            else:  # it ended before; it may have become faster
                longest *= 0.98
            self._seconds[work.__name__] = max(1e-5, longest)

    def exhaustively(self, count: int) -> None:
        """So many times, at one moment after the other of all calls, and then again."""
        done, moments = 0, 0
        places: list[tuple[int, Place]] = []
        while done < count and len(self.told.broken) < _ENOUGH:
            if not places:
                for number, work in enumerate(self.scenario.works):
                    self._aside(self.scenario.begin)
                    places += [(number, place) for place in places_of(work)]
                    self._aside(self.scenario.check)
                moments = moments or len(places)
                places = _spread(places, count - done, self._random)
            number, place = places.pop()
            done += self._interrupt(AtMoment(place, self._exception()), self.scenario.works[number])
        self.told.exhaustive += done
        self.told.moments = max(moments, self.told.moments)

    def by_itself(self, count: int) -> None:
        """For calls that bring their own interruptions: an event loop does not survive those of others."""
        for number in range(count):
            if len(self.told.broken) < _ENOUGH:
                works = self.scenario.works
                self._interrupt(Itself(), works[number % len(works)])

    def _exception(self) -> type[BaseException]:
        return Alarm if self.told.interruptions % 3 == 2 else KeyboardInterrupt

    def _interrupt(self, way: AtMoment | AfterSeconds | Itself, work: Callable[[], object]) -> bool:
        faulthandler.dump_traceback_later(_HUNG_SECONDS, exit=True)
        broken = len(self.told.broken)
        self._aside(self.scenario.begin)
        ended = False

        def call() -> None:
            nonlocal ended
            work()
            ended = True

        try:
            with _dropped() as dropped:
                interrupted = way.run(call)
        except Exception as error:  # noqa: BLE001 - an error in place of the interruption
            interrupted = True
            self._is_broken(way, f"{type(error).__name__}: {error}")
        if interrupted:
            self.told.interruptions += 1
            self.told.dropped += len(dropped)
            if ended and not dropped and not _at_the_end(way):
                self.told.swallowed += 1
                self._is_broken(way, "the interruption was swallowed")
            if np.geterr() != _MODES:
                np.seterr(**_MODES)
                if not _in_numpy(way):
                    self._is_broken(way, "NumPy's floating-point modes stay changed")
        try:
            self._aside(self.scenario.check)
        except BaseException as error:  # noqa: BLE001 - it is told with where it was interrupted
            self._is_broken(way, f"{type(error).__name__}: {error}")
        faulthandler.cancel_dump_traceback_later()
        if len(self.told.broken) > broken:
            self.scenario = SCENARIOS[self._kind]()
        return interrupted

    def _is_broken(self, way: AtMoment | AfterSeconds | Itself, why: str) -> None:
        self.told.broken.append(f"{why}\n  interrupted in " + "\n    ".join(way.where[:12]))

    @staticmethod
    def _aside(call: Callable[[], None]) -> None:
        """On another thread, which must find no lock that nobody lets go of."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised where it belongs
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(2 * PATIENCE)
        if thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            raise Broken("it waits for ever")
        if failures:
            raise failures[0]


def _spread(places: list[tuple[int, Place]], most: int, chance: random.Random) -> list[tuple[int, Place]]:
    """All of them, or as many as there is time for, at equal distances."""
    step = max(1, -(-len(places) // max(1, most)))
    return places[chance.randrange(step) :: step]


def _at_the_end(way: AtMoment | AfterSeconds | Itself) -> bool:
    """Whether it came when all was done: in the function here, behind the call."""
    return not way.where or "Interrupter._interrupt" in way.where[0]


def _in_numpy(way: AtMoment | AfterSeconds | Itself) -> bool:
    """Whether it came inside of an `np.errstate` of NumPy's own, as where it prints arrays."""
    return len(way.where) > 1 and all("/numpy/" in frame for frame in way.where[:2])


def _seconds_of(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[2]


@contextmanager
def _dropped() -> Iterator[list[str]]:
    """What Python drops because it was raised in a finalizer."""
    found: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda event: found.append(repr(event.exc_type))
    try:
        yield found
    finally:
        sys.unraisablehook = before


def interrupt(kind: str, count: int, seed: int, ways: str = "both", patience: float = PATIENCE) -> Told:
    """Half of them at random, and half at one moment after the other.

    What is left then has `patience` seconds to go away.
    """
    told = Told(kind)
    interrupter = Interrupter(kind, seed, told)
    if kind == "asyncio":
        interrupter.by_itself(count // 5)
        before = _held()
        interrupter.by_itself(count - count // 5)
        told.left += _settled(before, patience)
        return told
    exhaustive = {"both": count // 2, "random": 0, "moments": count}[ways]
    at_random = count - exhaustive
    # Caches fill at first: what is there after a fifth may stay, and nothing may be added.
    interrupter.exhaustively(exhaustive // 5)
    interrupter.at_random(at_random // 5)
    before = _held()
    interrupter.exhaustively(exhaustive - exhaustive // 5)
    interrupter.at_random(at_random - at_random // 5)
    if not told.broken:
        told.left += _settled(before, patience)
    if not told.broken:
        interrupter.scenario.close()
    return told


def _held() -> list[str]:
    """Threads, open files, children and mappings. Random parts of names do not matter."""
    now = held()
    found = (*now.threads, *now.files, *now.children, *["mapping of shared memory"] * now.segments)
    return [re.sub("[0-9a-f]{8,}|[0-9]+", "*", name) for name in found]


def _settled(before: list[str], patience: float) -> list[str]:
    """What is there and was not, after some time for what is about to end."""
    until = time.monotonic() + patience
    while (left := left_over(before, _held())) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _shares(kinds: Sequence[str], count: int) -> list[int]:
    """How many interruptions of each: fewer where one takes a large part of a second."""
    weights = [LONG.get(kind, 1.0) for kind in kinds]
    shares = [int(count * weight / sum(weights)) for weight in weights]
    shares[0] += count - sum(shares)
    return shares


def main(given: list[str] | None = None) -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="interruptions in all")
    parser.add_argument("--what", default=",".join(SCENARIOS), help="which kinds, separated by commas")
    parser.add_argument("--ways", choices=("both", "random", "moments"), default="both")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(given)
    kinds = options.what.split(",")
    for kind in kinds:
        if kind not in SCENARIOS:
            parser.error(f"there is no {kind}; there are {', '.join(SCENARIOS)}")
    all_told = []
    shares = _shares(kinds, options.count)
    for kind, share in zip(kinds, shares, strict=True):
        begin = time.perf_counter()
        told = interrupt(kind, share, options.seed, options.ways)
        all_told.append(told)
        say(
            f"{kind}: {told.interruptions} interruptions, {told.exhaustive} of them at one after the other of "
            f"{told.moments} moments, {told.dropped} dropped by Python, in {time.perf_counter() - begin:.0f} s"
        )
        for line in (*told.broken, *told.left):
            say(f"  {line}")
    publish(
        [
            Figure(name="interruptions", value=sum(each.interruptions for each in all_told), unit="times"),
            Figure(name="kinds broken", value=sum(bool(each.broken) for each in all_told), unit="kinds", bound=0.5),
            Figure(name="left behind", value=sum(len(each.left) for each in all_told), unit="things", bound=0.5),
        ],
        options,
    )


if __name__ == "__main__":
    main()
