"""Workers that really run out of memory under a runtime: nobody's task is lost, and nothing stays allocated.

Bytes are those that the engine in the worker counts for arrays and temporaries (`anygpu.memory.Stats`), asked for after
the last task; blocks that its pool keeps for later are not in use. At full count: `python -m benchmarks.faults
--what memory`.
"""

from __future__ import annotations

import numpy as np
import pytest

from anygpu.runtime.runtime import Runtime
from benchmarks.faults_scenarios import PATIENCE, shortages, smooth
from tests.support.fault_schedule import Kind
from tests.support.faults import FaultyRegistry, limited


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("kind", [Kind.NO_ROOM, Kind.OVER_BUDGET], ids=["rlimit", "budget"])
@pytest.mark.parametrize("engine", ["webgpu", "opencl"])
def test_a_lack_of_memory_costs_no_task_and_leaves_nothing(engine: str, kind: Kind) -> None:
    tally = shortages(5, kind, engine=engine, seed=11)
    assert tally.events >= 5
    assert (tally.lost, tally.wrong, tally.not_once, tally.errors) == (0, 0, 0, {})
    assert tally.bytes_left == 0


def test_a_worker_whose_memory_is_taken_away_from_outside_costs_no_task() -> None:
    known = FaultyRegistry("webgpu")
    x = np.linspace(-3, 3, 4_000_000).astype(np.float32)
    small = x[:100_000].copy()
    try:
        with Runtime(known=known) as runtime:
            runtime.submit(smooth, small, on="webgpu", fallback="raise").result(PATIENCE)
            assert known.victim is not None
            with limited(known.victim.process_id, 1 << 20):
                # In pieces, or on NumPy: wherever there is room for it.
                value = runtime.submit(smooth, x, on="webgpu", fallback="allow").result(PATIENCE)
            np.testing.assert_allclose(value, smooth(x), rtol=1e-5, atol=1e-6)
            again = runtime.submit(smooth, small, on="webgpu", fallback="raise").result(PATIENCE)
            np.testing.assert_allclose(again, smooth(small), rtol=1e-5, atol=1e-6)
            del value, again
            assert known.bytes_in_use() == 0
    finally:
        known.close()
