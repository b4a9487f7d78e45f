"""When faults happen to a device: a plan in shared memory, which its workers follow and write their story into.

The parent writes the plan; each worker of the device, one generation after the other, takes the next row for each run.
So faults come at chosen runs and not at chosen times, and the plan goes on when a worker has died of it.
"""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: Runs and tasks that one plan has room for. The file is sparse: what is not used takes no memory.
MOST_RUNS = MOST_TASKS = 1 << 20
MOST_GENERATIONS = 1 << 16
MOST_MARKS = 8


class Kind(enum.IntEnum):
    """What happens in a run."""

    NOTHING = 0
    #: The device is destroyed before the arguments are written.
    LOSE_BEFORE = 1
    #: The device is destroyed between the end of encoding and the submission, where wgpu-native ends the process.
    LOSE_AT_SUBMIT = 2
    #: The device is destroyed while the kernels are under way, before anything is read.
    LOSE_IN_FLIGHT = 3
    #: The device is destroyed after the results were read: the next run finds it so.
    LOSE_AFTER = 4
    #: RLIMIT_AS is set to what the process has, and what is left below it is taken: the results find no room.
    NO_ROOM = 5
    #: The results are asked of a resource that may give no more than a few bytes.
    OVER_BUDGET = 6
    #: The process ends by SIGKILL while the kernels are under way.
    KILL = 7
    #: A kernel that never ends is submitted before those of the run.
    HANG = 8


LOSSES = (Kind.LOSE_BEFORE, Kind.LOSE_AT_SUBMIT, Kind.LOSE_IN_FLIGHT, Kind.LOSE_AFTER)


class Ended(enum.IntEnum):
    """How a run ended, as far as its worker lived to tell."""

    UNKNOWN = 0
    ANSWERED = 1
    NO_MEMORY = 2


_HEAD = np.dtype(
    [
        ("runs", "u8"),
        ("generations", "u8"),
        ("bytes_in_use", "i8"),
        ("bytes_of_constants", "i8"),
        ("most_hits", "u8"),
        ("watched", "f8"),
        ("mark_values", "f8", (MOST_MARKS,)),
        ("mark_kinds", "u1", (MOST_MARKS,)),
    ],
    align=True,
)
_ROW = np.dtype(
    [("kind", "u1"), ("done", "u1"), ("ended", "u1"), ("generation", "u4"), ("began", "f8"), ("injected", "f8")],
    align=True,
)
_PARTS: tuple[tuple[str, Any, int], ...] = (
    ("head", _HEAD, 1),
    ("rows", _ROW, MOST_RUNS),
    ("opened", np.dtype("f8"), MOST_GENERATIONS),
    ("hits", np.dtype("u1"), MOST_TASKS),
)


class Schedule:
    """The plan and the story of one device. Times are of `time.monotonic`, which all processes share."""

    def __init__(self, path: Path | str | None = None) -> None:
        """A new one, or the one in that file."""
        self._own = path is None
        if path is None:
            folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
            descriptor, name = tempfile.mkstemp(prefix="anygpu-faults-", dir=folder)
            os.ftruncate(descriptor, sum(dtype.itemsize * count for _, dtype, count in _PARTS))
            path = name
        else:
            descriptor = os.open(path, os.O_RDWR)
        self.path = Path(path)
        try:
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        offset = 0
        views: dict[str, npt.NDArray[Any]] = {}
        for part, dtype, count in _PARTS:
            views[part] = np.frombuffer(self._map, dtype, count, offset)
            offset += dtype.itemsize * count
        self.head, self.rows, self.opened, self.hits = (views[part] for part, _, _ in _PARTS)
        if self._own:
            self.head["most_hits"] = 1
            self.head["watched"] = np.nan

    # -- the parent's side

    def arrange(self, kinds: Sequence[Kind], *, count: int, gap: int, seed: int) -> None:
        """From the next run on, `count` faults of these kinds in random order, each kind equally often.

        Two faults are 1 to `2 * gap - 1` runs apart. After a loss that the next run finds, three runs more: whoever
        finds it may have met faults before, and has time to be run again.
        """
        random = np.random.default_rng(seed)
        wanted = np.array([kinds[number % len(kinds)] for number in range(count)], np.uint8)
        random.shuffle(wanted)
        gaps = random.integers(1, 2 * gap, count)
        gaps[1:] += 3 * (wanted[:-1] == Kind.LOSE_AFTER)
        places = self.runs + np.cumsum(gaps)
        if count and int(places[-1]) >= MOST_RUNS:
            raise ValueError(f"a plan has room for {MOST_RUNS} runs, and this one would need {places[-1]}.")
        self.rows["kind"][places] = wanted

    def next_is(self, *kinds: Kind) -> None:
        """What happens in the next runs, while nothing runs."""
        first = self.runs
        self.rows["kind"][first : first + len(kinds)] = kinds

    def mark(self, value: float, kind: Kind) -> None:
        """From now on it happens in every run of a program that has this value among its constants."""
        marks = self.head["mark_kinds"][0]
        place = int(np.flatnonzero(marks == Kind.NOTHING)[0])
        self.head["mark_values"][0][place] = np.float32(value)
        marks[place] = kind

    def watch(self, value: float) -> None:
        """From now on only programs with this value among their constants count as runs.

        Others are what the runtime does on its own, such as finding out how fast a device is.
        """
        self.head["watched"] = np.float32(value)

    def hit_at_most(self, times: int) -> None:
        """How often one task may meet a fault of the plan; after that, another one's run does.

        Tasks are told apart by the first value of their vectors. A task that kills three workers is refused as poison,
        and that is not to happen by chance to one that is not.
        """
        self.head["most_hits"] = times

    @property
    def runs(self) -> int:
        """Runs that have begun, in all generations."""
        return int(self.head["runs"][0])

    @property
    def generations(self) -> int:
        return int(self.head["generations"][0])

    @property
    def injected(self) -> int:
        """Faults of the plan that have happened."""
        return int(np.count_nonzero(self._story["done"]))

    @property
    def planned(self) -> int:
        """Faults that are still to come."""
        return int(np.count_nonzero(self.rows["kind"][self.runs :]))

    def times_injected(self, *kinds: Kind) -> int:
        story = self._story  # once: another run may begin at any moment
        done = story[story["done"] != 0]
        return int(np.isin(done["kind"], kinds).sum())

    def without_memory(self) -> int:
        """Runs that really ended for lack of memory."""
        return int((self._story["ended"] == Ended.NO_MEMORY).sum())

    def replacements(self) -> npt.NDArray[np.float64]:
        """For each fault that took the worker with it, the seconds until the next one ran something."""
        story = self._story
        faults = story[(story["done"] != 0) & ~np.isin(story["kind"], (Kind.NO_ROOM, Kind.OVER_BUDGET))]
        return self.next_generations(faults["injected"])

    def next_generations(self, moments: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """For each moment, the seconds until the first run of a worker that was opened after it."""
        story = self._story
        generations, first = np.unique(story["generation"], return_index=True)
        begun = story["began"][first]
        opened = self.opened[generations]
        waits = []
        for moment in np.atleast_1d(np.asarray(moments, np.float64)):
            later = begun[opened > moment]
            if later.size:
                waits.append(float(later.min() - moment))
        return np.array(waits)

    @property
    def _story(self) -> npt.NDArray[Any]:
        story: npt.NDArray[Any] = self.rows[: self.runs]
        return story

    def close(self) -> None:
        """Forget it; workers that still have it open keep it for as long as they live."""
        if self._own:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        del self.head, self.rows, self.opened, self.hits
        with contextlib.suppress(BufferError):
            self._map.close()
