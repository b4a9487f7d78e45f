"""The command for many mutated messages, with a few: `python -m benchmarks.fleet_fuzz` makes 100,000."""

from __future__ import annotations

from benchmarks.fleet_fuzz import fuzz


def test_mutated_messages_are_done_or_refused() -> None:
    became, wrong, _ = fuzz(3000, seed=5)
    assert wrong == []
    for door in ("a question", "a reply", "an answer", "a request or event"):
        assert sum(number for what, number in became.items() if what.startswith(door)) > 300
    assert became["a question, refused"] > 50
    assert became["a reply, actor given up"] > 100
