"""Calls as blocks on a line of time.

At 2,000 calls a second no screen has room for each call. Calls of one function on one device whose gap could not be
seen become one block, which knows how many they were and how long they took: the area of what is drawn stays the
seconds they took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anygpu.observe.calls import Call

Table = NDArray[np.float64]

#: The columns of a block: seconds since 1970, then seconds, then counts, then numbers of names.
BEGIN, END, WAIT, MOVE, RUN, CALLS, ERRORS, FUNCTION, DEVICE = range(9)
COLUMNS = 9
#: A device's lines for blocks that overlap, at most; more are drawn over one another.
SLOTS = 3


class Placed(NamedTuple):
    """Blocks with the part of their device's row that is theirs: from `low` to `high`, 0 to 1."""

    blocks: Table
    rows: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def blocks_of(calls: Sequence[Call], functions: Sequence[int], devices: Sequence[int]) -> Table:
    """One block a call, which begins when it stopped waiting: its moves and its run, in the end."""
    table = np.empty((len(calls), COLUMNS))
    for row, call, function, device in zip(table, calls, functions, devices, strict=True):
        move, run = max(call.move, 0.0), max(call.run, 0.0)
        # What was planned and compiled keeps no device busy, as little as what waited.
        wait = max(0.0, call.seconds - move - run)
        row[:] = (call.end - move - run, call.end, wait, move, run, 1, call.error is not None, function, device)
    return table


def merged(blocks: Table, gap: float) -> Table:
    """Blocks of one function on one device that are not further apart than this as one."""
    if len(blocks) < 2:
        return blocks
    blocks = blocks[np.lexsort((blocks[:, BEGIN], blocks[:, FUNCTION], blocks[:, DEVICE]))]
    series = np.zeros(len(blocks))
    changes = (np.diff(blocks[:, FUNCTION]) != 0) | (np.diff(blocks[:, DEVICE]) != 0)
    np.cumsum(changes, out=series[1:])
    # The latest end so far of the same series: each series is put behind all the earlier ones.
    origin = blocks[:, BEGIN].min()
    length = blocks[:, END].max() - origin + gap + 1.0
    ends = np.maximum.accumulate(blocks[:, END] - origin + series * length)
    begins = blocks[:, BEGIN] - origin + series * length
    first = np.flatnonzero(np.concatenate(([True], changes | (begins[1:] - ends[:-1] > gap))))
    result = np.add.reduceat(blocks, first, axis=0)
    result[:, BEGIN] = np.minimum.reduceat(blocks[:, BEGIN], first)
    result[:, END] = np.maximum.reduceat(blocks[:, END], first)
    for name in (FUNCTION, DEVICE):
        result[:, name] = blocks[first, name]
    return result


def placed(blocks: Table, rows: NDArray[np.int64]) -> Placed:
    """Blocks of one row that overlap get lines of their own; the height is the share of the time that it was busy."""
    order = np.lexsort((blocks[:, BEGIN], rows))
    blocks, rows = blocks[order], rows[order]
    slots = np.zeros(len(blocks), np.int64)
    used: dict[int, int] = {}
    free: list[float] = []
    last = -1
    for index, (row, begin, end) in enumerate(
        zip(rows.tolist(), blocks[:, BEGIN].tolist(), blocks[:, END].tolist(), strict=True)
    ):
        if row != last:
            free, last = [], row
        for slot, until in enumerate(free):
            if until <= begin:
                break
        else:
            slot = len(free)
            if slot == SLOTS:
                slot = min(range(SLOTS), key=free.__getitem__)
            else:
                free.append(end)
        free[slot] = max(end, free[slot])
        slots[index] = slot
        used[row] = max(used.get(row, 1), slot + 1)
    count = np.asarray([used[row] for row in rows.tolist()], float)
    seconds = blocks[:, MOVE] + blocks[:, RUN]
    extent = np.maximum(blocks[:, END] - blocks[:, BEGIN], 1e-9)
    # One busy for a thousandth of its time is still to be seen.
    share = np.clip(seconds / extent, 0.15, 1.0)
    low = slots / count
    return Placed(blocks, rows, low, low + share / count)
