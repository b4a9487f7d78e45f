"""An array larger than memory through a function: `python -m benchmarks.streaming [--gigabytes 20] [--check]`.

A sparse .npy file of rows of 256 numbers, of which some stretches are written. Of each row the result has the entropy
and the largest probability of its softmax, the function itself knowing nothing of chunks. Memory is what this process
and its children have resident, looked at every few milliseconds, beyond what this process had before the stream.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from anygpu.runtime.streams.streaming import stream
from benchmarks.report import Figure, options_parser, publish

COLUMNS = 256
#: Rows that are written, in stretches all over the file; the rest is a hole, and reads as zeros.
STRETCHES, ROWS = 40, 2_000
#: What the stream may hold at once, in bytes, and its total by its slowest stage.
MEMORY, OVERLAP = 10**9, 1.2
LOOK_SECONDS = 0.005


def certainty(x: Any) -> Any:
    """Of each row: the entropy and the largest value of its softmax."""
    shifted = x - x.max(axis=1, keepdims=True)
    e = np.exp(shifted)
    total = e.sum(axis=1)
    entropy = np.log(total) - (e * shifted).sum(axis=1) / total
    return np.stack([entropy, 1 / total], axis=1)


def write_sparse(path: Path, gigabytes: float) -> list[int]:
    """The file, and where its stretches begin; one is at the very end."""
    rows = int(gigabytes * 10**9) // (4 * COLUMNS)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (rows, COLUMNS))
    length = min(ROWS, rows // STRETCHES)
    starts = sorted({*np.linspace(0, rows - length, STRETCHES).astype(int).tolist(), rows - length})
    draw = np.random.default_rng(0)
    for start in starts:
        array[start : start + length] = draw.normal(scale=3, size=(length, COLUMNS))
    array.flush()
    return starts


class Watching:
    """The most that was resident, here and in all children."""

    def __init__(self) -> None:
        self.most = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        me, over = psutil.Process(), threading.Event()
        before = me.memory_info().rss + sum(map(_resident, me.children(recursive=True)))

        def look() -> None:
            while not over.wait(LOOK_SECONDS):
                now = _resident(me) + sum(map(_resident, me.children(recursive=True)))
                self.most = max(self.most, now - before)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _resident(process: psutil.Process) -> int:
    try:
        found: int = process.memory_info().rss
    except psutil.Error:  # it has ended meanwhile
        return 0
    return found


def worst_difference(source: Path, result: Path, starts: list[int]) -> float:
    """In stretches that were written, and in some rows of the holes between them."""
    x, y = np.load(source, mmap_mode="r"), np.load(result, mmap_mode="r")
    worst = 0.0
    for start in starts:
        stop = min(start + 2 * ROWS, len(x))
        expected = certainty(np.asarray(x[start:stop], np.float64))
        worst = max(worst, float(np.max(np.abs(y[start:stop] - expected))))
    return worst


def measure(options: argparse.Namespace) -> list[Figure]:
    watching = Watching()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source, result = Path(folder, "large.npy"), Path(folder, "result.npy")
        starts = write_sparse(source, options.gigabytes)
        with watching.watch():
            streamed = stream(
                certainty,
                source,
                result,
                memory=MEMORY,
                progress=sys.stderr.isatty(),
                given={"on": options.on, "fallback": "raise"},
            )
        difference = worst_difference(source, result, starts)
    sys.stderr.write(f"{streamed}\n{streamed.receipt}\n")
    seconds = streamed.seconds
    return [
        Figure(name="read", value=options.gigabytes, unit="GB"),
        Figure(name=f"chunks, most of them on {streamed.receipt.device}", value=streamed.chunks, unit=""),
        Figure(name="reading", value=seconds.read, unit="s"),
        Figure(name="transfer", value=seconds.transfer, unit="s"),
        Figure(name="computing", value=seconds.compute, unit="s"),
        Figure(name="writing", value=seconds.write, unit="s"),
        Figure(name="total", value=seconds.total, unit="s"),
        Figure(name="total by the slowest stage", value=streamed.overlap, unit="×", bound=OVERLAP),
        Figure(
            name="most bytes held, by its own account", value=streamed.peak_bytes / 1e6, unit="MB", bound=MEMORY / 1e6
        ),
        Figure(name="most bytes resident beyond before", value=watching.most / 1e6, unit="MB", bound=MEMORY / 1e6),
        Figure(name="worst difference from NumPy in 64 bits", value=difference, unit="", bound=1e-4),
    ]


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0, help="size of the file (20)")
    parser.add_argument("--on", default=None, help="a device, as in offload(on=...)")
    parser.add_argument("--folder", default=os.environ.get("TMPDIR"), help="where the file is made for the while")
    options = parser.parse_args()
    publish(measure(options), options)


if __name__ == "__main__":
    main()
