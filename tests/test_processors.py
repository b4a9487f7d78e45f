"""Processors: those that there are, those that this process may use, and those that it uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from anygpu.processors import ProcessorUse, usable_processors


@pytest.mark.parametrize(
    ("limit", "processors"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None), ("?", None)]
)
def test_a_container_may_have_fewer_processors_than_the_machine(
    tmp_path: Path, limit: str, processors: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    everything = usable_processors(str(tmp_path / "nothing"))
    assert everything >= 1
    assert usable_processors(str(tmp_path / "cpu.max")) == (processors or everything)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("processors", "used", "spare"), [(2, 1.0, True), (2, 1.9, False), (1, 1.0, False), (8, 3.0, True), (2, 0.1, True)]
)
def test_a_processor_is_idle_that_nobody_uses_on_average(processors: int, used: float, spare: bool) -> None:
    clock, processor_clock = Clock(), Clock()
    use = ProcessorUse(processors, clock, processor_clock)
    assert not use.has_spare(), "nothing is known yet"
    clock.now += 3.0
    processor_clock.now += 3.0 * used
    assert use.has_spare() is spare
