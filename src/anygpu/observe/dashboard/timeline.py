"""Calls as blocks on a line of time.

At 2,000 calls a second no screen has room for each call. Calls of one function on one device whose gap could not be
seen become one block, which knows how many they were and how long they took. If there are still too many, time is cut
into parts, and the area of what is drawn is the seconds that calls took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anygpu.observe.snapshot import Call

Table = NDArray[np.float64]

#: The columns of a block: seconds since 1970, then seconds, then counts, then numbers of names.
BEGIN, END, WAIT, MOVE, RUN, CALLS, ERRORS, FUNCTION, DEVICE = range(9)
COLUMNS = 9
#: A device's lines for blocks that overlap, at most; more are drawn over one another.
SLOTS = 3


class Placed(NamedTuple):
    """Blocks with the part of the row that is theirs: from `low` to `high`, 0 to 1."""

    blocks: Table
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


def placed(blocks: Table) -> Placed:
    """The blocks of one row: those that overlap get lines of their own."""
    blocks = blocks[np.argsort(blocks[:, BEGIN])]
    slots: list[int] = []
    free: list[float] = []
    for begin, end in blocks[:, (BEGIN, END)].tolist():
        slot = next((slot for slot, until in enumerate(free) if until <= begin), len(free))
        if slot == SLOTS:
            slot = min(range(SLOTS), key=free.__getitem__)
        elif slot == len(free):
            free.append(end)
        free[slot] = max(end, free[slot])
        slots.append(slot)
    low = np.asarray(slots) / max(1, len(free))
    return Placed(blocks, low, low + 1 / max(1, len(free)))


def stacked(blocks: Table, begin: float, end: float, parts: int) -> Placed:
    """The blocks of one row, of which there are too many to be drawn: the functions of each part of the time, one upon
    the other, each as high as the share of the part that it took.
    """
    width = (end - begin) / parts
    first = np.clip(np.floor((blocks[:, BEGIN] - begin) / width), -1, parts).astype(np.int64)
    last = np.clip(np.floor((blocks[:, END] - begin) / width), -1, parts).astype(np.int64)
    # A block that is in several parts becomes one in each, with its share of everything.
    count = last - first + 1
    which = np.repeat(np.arange(len(blocks)), count)
    part = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count) + first[which]
    left = begin + part * width
    inside = np.minimum(blocks[which, END], left + width) - np.maximum(blocks[which, BEGIN], left)
    extent = blocks[which, END] - blocks[which, BEGIN]
    share = np.divide(inside, extent, out=np.ones(len(which)), where=extent > 0)
    kept = (part >= 0) & (part < parts) & (share > 0)
    which, part, share = which[kept], part[kept], share[kept]
    functions, function = np.unique(blocks[which, FUNCTION], return_inverse=True)
    cells = part * len(functions) + function
    summed = np.stack(
        [
            np.bincount(cells, blocks[which, column] * share, parts * len(functions))
            for column in (WAIT, MOVE, RUN, CALLS, ERRORS)
        ],
        axis=1,
    )
    used = np.flatnonzero(summed[:, 3])
    result = np.empty((len(used), COLUMNS))
    result[:, BEGIN] = begin + used // len(functions) * width
    result[:, END] = result[:, BEGIN] + width
    result[:, WAIT : ERRORS + 1] = summed[used]
    result[:, FUNCTION] = functions[used % len(functions)]
    result[:, DEVICE] = blocks[0, DEVICE]
    busy = ((summed[:, 1] + summed[:, 2]) / width).reshape(parts, len(functions))
    tops = np.cumsum(busy, axis=1)
    # Several may run at once: the row is as high as most of them did.
    most = max(1.0, float(tops.max()))
    high = (tops / most).ravel()[used]
    low = ((tops - busy) / most).ravel()[used]
    # What is hardly ever busy is still to be seen.
    return Placed(result, low, np.maximum(high, low + 0.03))
