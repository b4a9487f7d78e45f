"""Workers that are killed under a runtime: every result comes once, and who kills three of them is refused.

The same at full count: `python -m benchmarks.faults --what kills,poison`.
"""

from __future__ import annotations

import pytest

from anygpu.errors import PoisonTask
from benchmarks.faults_scenarios import kills, poison


def test_every_result_is_delivered_exactly_once_while_workers_are_killed() -> None:
    tally = kills(4, 400, seed=13)
    assert tally.events == 4
    assert (tally.lost, tally.wrong, tally.not_once, tally.errors) == (0, 0, 0, {})
    assert tally.bytes_left == 0
    assert len(tally.replaced) >= 3


@pytest.mark.full
def test_a_task_that_kills_three_workers_is_named_and_the_others_go_on() -> None:
    poisoned = poison(60)
    assert isinstance(poisoned.error, PoisonTask)
    assert "poisonous" in str(poisoned.error)
    assert poisoned.error.deaths == poisoned.workers_killed == 3
    assert (poisoned.others.lost, poisoned.others.wrong, poisoned.others.not_once) == (0, 0, 0)
