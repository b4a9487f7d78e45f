"""Memory is given back: arrays come and go, and no more is in use afterwards than before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np

from anygpu.array.trace.tracing import record
from anygpu.base.units import readable_bytes
from anygpu.hardware.host import resident_bytes
from anygpu.verify.cases import ActCase, Case, Check, Tried
from anygpu.verify.subject import Subject

#: How often, after as many rounds in which caches fill, and how much each time.
ROUNDS = 24
ELEMENTS = 1 << 20
#: What an allocator may keep of what was freed, where only the system counts.
_SLACK = 96 << 20


def _function(x: Any) -> Any:
    return np.sqrt(x * x + 1), x.sum()


def _round(subject: Subject, number: int) -> str:
    handle = subject.handle
    x = np.full(ELEMENTS, number, np.float32)
    program = record(_function, x)
    results = handle.run(program, [handle.upload(x)])
    total = float(handle.download(results[1]))
    return "" if total == number * float(ELEMENTS) else f"a sum of {ELEMENTS:,} times {number} came as {total}."


def _comes_and_goes(subject: Subject) -> Tried:
    """Counted by the engine where it counts, and by the system otherwise."""
    counted = [0, 0]
    for turn in range(2):
        for number in range(ROUNDS):
            wrong = _round(subject, number)
            if wrong:
                return Tried(wrong)
        gc.collect()
        subject.worker.reclaim()
        in_use = subject.worker.memory().in_use
        counted[turn] = resident_bytes(children=True) if in_use is None else in_use
    is_counted = subject.worker.memory().in_use is not None
    grown = counted[1] - counted[0]
    if grown > (0 if is_counted else _SLACK):
        return Tried(f"{ROUNDS} arrays that came and went have left {readable_bytes(grown)} in use.")
    return Tried()


def _many_at_once(subject: Subject) -> Tried:
    """Many small arrays live together, and each keeps its own values."""
    handle = subject.handle
    arrays = [np.arange(number, number + 97, dtype=np.int32) for number in range(256)]
    buffers = [handle.upload(each) for each in arrays]
    for number in range(0, 256, 3):
        buffers[number] = handle.upload(arrays[number])
    for number, (array, buffer) in enumerate(zip(arrays, buffers, strict=True)):
        if not np.array_equal(handle.download(buffer), array):
            return Tried(
                f"array {number} of 256 on the device at once was read back with other values than were written."
            )
    return Tried()


def _cases(subject: Subject) -> Iterator[Case]:
    yield ActCase("arrays come and go", 0, _comes_and_goes)
    yield ActCase("256 arrays at once", 1, _many_at_once)


MEMORY = Check("memory", "Memory is given back, and arrays do not disturb each other.", 0.03, lambda subject: 2, _cases)
