"""Times of a step's parts. CUDA's events are a stand-in's: they were never recorded on a card."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anygpu.pytorch.measuring import CudaLaps, HostLaps, laps_on


def test_laps_of_the_host_add_up() -> None:
    times = iter([0.0, 1.0, 3.0, 3.5, 7.5])
    laps = HostLaps(lambda: next(times))
    for name in ("forward", "backward", "", "forward"):
        laps.lap(name)
    assert laps.seconds() == {"forward": 5.0, "backward": 2.0}


class Card:
    """Events whose times are milliseconds on the card; `waits` counts those that the host has waited for."""

    def __init__(self) -> None:
        self.now, self.waits, self.streams = 0.0, 0, set[str]()


def test_laps_of_a_card_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            card.streams.add(stream)
            self.time = card.now

        def synchronize(self) -> None:
            card.waits += 1

        def elapsed_time(self, later: Any) -> float:
            assert card.waits, "nobody has waited for the card"
            return float(later.time - self.time)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    laps = laps_on(torch.device("cuda:1"))
    assert isinstance(laps, CudaLaps)
    for name, milliseconds in (("forward", 2.0), ("backward", 4.0), ("", 1.0), ("forward", 3.0), ("optimizer", 1.0)):
        card.now += milliseconds
        laps.lap(name)
    assert laps.seconds() == pytest.approx({"forward": 0.005, "backward": 0.004, "optimizer": 0.001})
    assert card.waits == 1
    assert card.streams == {"stream of cuda:1"}
