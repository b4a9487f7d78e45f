"""Large copies by two threads: all bytes, and nobody writes any more when the copy has returned or failed."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from anygpu.engines.opencl import memory
from anygpu.engines.opencl.memory import copy_bytes
from tests.support.isolation import run_alone


@pytest.mark.parametrize("nbytes", [0, 1, 4095, memory.WORTH_A_THREAD - 1, memory.WORTH_A_THREAD + 4097])
def test_every_byte_arrives(nbytes: int) -> None:
    source = np.resize(np.arange(251, dtype=np.uint8), nbytes)
    target = np.zeros(nbytes, np.uint8)
    copy_bytes(target, source)
    np.testing.assert_array_equal(target, source)


def copy_what_does_not_fit() -> None:
    source = np.zeros(memory.WORTH_A_THREAD, np.uint8)
    with pytest.raises(ValueError, match="broadcast"):
        copy_bytes(np.zeros(len(source) - 5, np.uint8), source)
    read_only = np.zeros_like(source)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy_bytes(read_only, source)
    assert threading.active_count() == 1


def test_a_copy_that_does_not_fit_raises_and_leaves_no_thread() -> None:
    run_alone(copy_what_does_not_fit)


def test_one_thread_copies_where_there_is_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "usable_processors", lambda: 1)
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    source = np.full(memory.WORTH_A_THREAD, 7, np.uint8)
    target = np.zeros_like(source)
    copy_bytes(target, source)
    assert target.min() == 7
