"""Mixed load with random faults for a long time: `python -m benchmarks.soak --minutes N [--seed S] [--json] [--check]`.

Some callers do everything that a runtime offers, and check every result. Meanwhile workers are killed with SIGKILL or
stopped with SIGSTOP, and on one more device of its own the device is destroyed, memory is missing, and kernels never
end. Every twenty seconds all pause, and private memory is measured after a garbage collection, when the C library has
given back the free pages of its heap; without shared memory, whose pool breathes. The bound is for its slope: the
middle of the slopes between all pairs of these (Theil and Sen), without the first third. Resident memory is beside it.
In the end everything is closed, and threads, files, shared memory and children must be those of the beginning.

The clock counts the time in which this process could run: not for how long it was stopped (SIGSTOP) or starved.
`--patience` is how long a result may take before its task counts as lost; on a machine that is busy with other things
more. Engines are numpy, opencl and webgpu only; the program starts itself again with them. `--trace` counts
allocations, which takes memory of its own. Ctrl-C ends it early, with its figures.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import tracemalloc
from collections import Counter

import numpy as np

from benchmarks.faults import Never
from benchmarks.report import Figure, options_parser, publish
from benchmarks.soak_load import PATIENCE, Client, Faults, FaultyClient, Gate, Tally
from benchmarks.soak_watch import Clock, Held, Sample, give_back, held, keep_little, left_over, objects, sample, slope

VARIABLE, ENGINES = "ANYGPU_ENGINES", "numpy,opencl,webgpu"

#: What memory may grow, in MB an hour; judged when the soak was long enough to tell that from noise.
SLOPE, LONG_ENOUGH = 2.0, 15.0
#: Of all samples, what is warm-up.
WARM_UP = 1 / 3
#: Seconds between samples, between pauses, and between lines of progress.
EVERY, PAUSE, PROGRESS = 4.0, 20.0, 60.0
#: Pauses at least, however short it is.
PAUSES = 12
CLIENTS = 3
QUEUE = 300
#: Kinds of objects that have become more, of which it is told.
GROWN = 12


class Soak:
    """Everything that is seen while it goes on."""

    def __init__(self, minutes: float, seed: int, *, trace: bool, patience: float = PATIENCE) -> None:
        self._seconds = 60 * minutes
        self._patience = patience
        self._seed = seed
        self._trace = trace
        self._ended = False
        self.tally = Tally()
        self.clock = Clock()
        self.samples: list[Sample] = []
        #: Taken while nobody worked.
        self.quiet: list[Sample] = []
        self.not_quiet = 0
        self.grown: list[tuple[str, int]] = []
        self.before: Held
        self.after: Held

    def end(self) -> None:
        """Earlier than it was meant to; its figures are of what has been."""
        self._ended = True

    def run(self) -> None:
        import anygpu.workers.device_arrays.registry as devices
        from anygpu.placement.planner import default
        from anygpu.runtime.runtime import Runtime

        keep_little()
        # Whoever waits longer for results waits longer for devices to be found, too.
        devices.LOOK_SECONDS *= self._patience / PATIENCE
        # Libraries that start threads when they are first used do it before anything is counted.
        np.ones((256, 256), np.float32) @ np.ones((256, 256), np.float32)
        self.before = held()
        gate = Gate()
        runtime = Runtime(queue=QUEUE)
        everybody: list[Client | FaultyClient | Faults] = [
            *(
                Client(runtime, self.tally, gate, 1000 * self._seed + number, self._patience)
                for number in range(CLIENTS)
            ),
            FaultyClient(self.tally, gate, self._seed + 7, self._patience),
            Faults(runtime, self.tally, gate, self._seed + 8),
        ]
        self._watch(gate)
        for each in everybody:
            each.stop()
        for each in everybody:
            each.thread.join(self._patience + 60)
        runtime.close()
        default().settle(30)
        default().close()
        devices.registry.close()
        del runtime, everybody, each
        self.after = held(self.tally.names)

    def _watch(self, gate: Gate) -> None:
        clock = self.clock
        clock.start()
        pause = min(PAUSE, self._seconds / PAUSES)
        next_sample, next_pause, next_line = 0.0, pause, PROGRESS
        first: Counter[str] | None = None
        last: Counter[str] = Counter()
        traced: tracemalloc.Snapshot | None = None
        while (now := clock.now()) < self._seconds and not self._ended:
            if now >= next_sample:
                self.samples.append(sample(now))
                next_sample = now + EVERY
            if now >= next_pause:
                with gate.quiet(self._patience) as is_quiet:
                    clock.skip()
                    give_back()
                    if is_quiet:
                        self.quiet.append(sample(clock.now()))
                    else:
                        self.not_quiet += 1
                    if first is None and now >= self._seconds * WARM_UP:
                        first = objects()
                        if self._trace:
                            tracemalloc.start(5)
                            traced = tracemalloc.take_snapshot()
                    elif first is not None:
                        last = objects()
                clock.skip()
                next_pause = clock.now() + pause
            if now >= next_line:
                self._tell(now)
                next_line += PROGRESS
            time.sleep(min(0.5, max(0.0, self._seconds - now)))
        self._seconds = min(self._seconds, now)
        if first is not None:
            # The counters themselves are some objects more.
            self.grown = (last - first).most_common(GROWN)
        if traced is not None:
            for line in tracemalloc.take_snapshot().compare_to(traced, "lineno")[:25]:
                sys.stderr.write(f"{line}\n")
            tracemalloc.stop()

    def _tell(self, seconds: float) -> None:
        tally, latest = self.tally, self.samples[-1]
        faults = sum(count for what, count in tally.counts.items() if what.startswith("fault: "))
        quiet = f"{self.quiet[-1].private / 1e6:.1f} MB at rest, " if self.quiet else ""
        sys.stderr.write(
            f"{seconds / 60:.0f} min: {tally.done} tasks, {faults} faults, {tally.wrong} wrong, {tally.lost} lost; "
            f"{quiet}{latest.resident / 1e6:.1f} MB, children {latest.children / 1e6:.0f} MB, "
            f"{latest.threads} threads, {latest.files} files, {latest.segments} segments\n"
        )
        sys.stderr.flush()

    def figures(self) -> list[Figure]:
        tally, minutes = self.tally, self._seconds / 60
        steady = self.quiet[int(len(self.quiet) * WARM_UP) :]
        all_steady = self.samples[int(len(self.samples) * WARM_UP) :]
        bound = SLOPE if minutes >= LONG_ENOUGH else None
        before, after = self.before, self.after
        return [
            Figure(name="minutes", value=minutes, unit=""),
            Figure(name="minutes besides, stopped or starved", value=self.clock.lost / 60, unit=""),
            Figure(name="tasks done and checked", value=tally.done, unit=""),
            *(Figure(name=what, value=count, unit="") for what, count in sorted(tally.counts.items())),
            Never(name="wrong", value=tally.wrong),
            Never(name="lost", value=tally.lost),
            Figure(
                name="private memory at rest, first", value=(self.quiet or self.samples)[0].private / 1e6, unit="MB"
            ),
            Figure(
                name="private memory at rest, in the end",
                value=(self.quiet or self.samples)[-1].private / 1e6,
                unit="MB",
            ),
            Figure(name="resident memory, at most", value=max(each.resident for each in self.samples) / 1e6, unit="MB"),
            Figure(name="private memory slope, at rest", value=slope(steady, "private"), unit="MB/h", bound=bound),
            Figure(name="resident memory slope, at rest", value=slope(steady), unit="MB/h"),
            Figure(name="resident memory slope, under load", value=slope(all_steady), unit="MB/h"),
            Figure(name="pauses in which not all came to rest", value=self.not_quiet, unit=""),
            Never(name="threads left over", value=len(left_over(before.threads, after.threads))),
            Never(name="native threads left over", value=max(0, after.native_threads - before.native_threads)),
            Never(name="files left over", value=len(left_over(before.files, after.files))),
            Never(name="shared-memory segments left over", value=max(0, after.segments - before.segments)),
            Never(name="names in /dev/shm left over", value=len(left_over(before.names, after.names))),
            Never(name="children left over", value=len(left_over(before.children, after.children))),
        ]

    def stories(self) -> str:
        """What the figures do not say: what was lost, what is left, and what there is more of."""
        lines = [f"{kind}\n{story}" for kind, story in self.tally.stories.items()]
        lines += [
            f"clients, {what}: {times} times, {total / times:.3f} s each, {longest:.1f} s the longest\n"
            for what, (times, total, longest) in self.tally.actions.items()
        ]
        for what in ("threads", "files", "names", "children"):
            left = left_over(getattr(self.before, what), getattr(self.after, what))
            if left:
                lines.append(f"left over, {what}: {', '.join(left)}\n")
        lines += [f"more objects after the warm-up: {count:+d} {kind}\n" for kind, count in self.grown]
        return "".join(lines)


def main(given: list[str] | None = None) -> None:
    parser: argparse.ArgumentParser = options_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="tell which lines have allocated what is there at the end")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds after which a task counts as lost")
    options = parser.parse_args(given)
    soak = Soak(options.minutes, options.seed, trace=options.trace, patience=options.patience)
    signal.signal(signal.SIGINT, lambda *_: soak.end())
    soak.run()
    sys.stderr.write(soak.stories())
    publish(soak.figures(), options)


if __name__ == "__main__":
    if os.environ.get(VARIABLE) != ENGINES:
        os.environ[VARIABLE] = ENGINES
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.soak", *sys.argv[1:]])
    main()
