"""Processors: those that there are, and those that this process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from anygpu.base.this_process import usable_processors


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
