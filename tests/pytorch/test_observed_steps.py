"""Real steps as they are seen by those who observe them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from anygpu.base import events
from anygpu.observe import trace
from anygpu.observe.observation import Observation
from anygpu.observe.profiler import Profiler
from anygpu.observe.statistics import CallStatistics
from anygpu.pytorch import Step, prefetch
from tests.observe.trace_checks import Trace


class Tight(nn.Module):
    """A module that has no memory for more than so many rows."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.inner = most, nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.most:
            raise torch.OutOfMemoryError(f"no memory for {len(x)} rows")
        return self.inner(x)


def step_of(model: nn.Module) -> Step:
    # Planned memory would be kept across runs; this is about what is seen.
    return Step(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), precision="float32")


def batch(rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8), torch.randint(4, (rows,))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def seen() -> Observation:
    return Observation()


def train(seen: Observation, step: Step, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> CallStatistics:
    events.calls.append(seen)
    try:
        for each in prefetch(batches):
            step(each)
    finally:
        events.calls.remove(seen)
        (found,) = seen.summary().calls
    return found


def test_steps_have_parts(seen: Observation) -> None:
    found = train(seen, step_of(Tight(16)), [batch() for _ in range(5)])
    assert (found.function, found.device, found.calls) == ("train Tight", "torch:cpu", 5)
    assert list(found.parts) == ["forward", "backward", "optimizer"]
    assert 0 < sum(found.parts.values()) <= found.seconds.total
    assert found.phases["queue"] > 0, "it waited for the loader"
    assert (found.repeats, found.errors) == (0, {})


def test_a_step_that_was_out_of_memory_is_repeated_and_seen(seen: Observation) -> None:
    found = train(seen, step_of(Tight(4)), [batch()])
    assert found.calls == 1
    assert found.repeats >= 1
    assert (found.fallbacks, found.errors) == (0, {})
    (again,) = seen.fallbacks()
    assert again.repeated
    assert "OutOfMemory" in again.reason


def test_a_step_that_raises_is_an_error(seen: Observation) -> None:
    step = step_of(Tight(16))
    with pytest.raises(Exception, match="shapes"):
        train(seen, step, [(torch.randn(4, 9), torch.randint(4, (4,)))])
    (found,) = seen.summary().calls
    assert (found.calls, sum(found.errors.values()), found.parts) == (1, 1, {})


def test_a_profile_has_a_step_on_the_line_that_calls_it() -> None:
    step = step_of(Tight(4))
    # Thread switches aside, this is what `anygpu profile` does around a script.
    with Profiler(__file__) as profiler:
        for each in prefetch([batch() for _ in range(3)]):
            step(each)  # this line
    profile = profiler.finish((), 0)
    (function,) = profile.functions
    assert (function.function, function.calls, function.errors) == ("train Tight", 3, 0)
    assert function.repeats >= 1
    assert set(function.parts) == {"forward", "backward", "optimizer"}
    (line,) = (each for each in profile.lines if each.calls)
    assert line.code.endswith("# this line")
    assert function.phases["queue"] > 0
    inside = function.seconds - function.phases["queue"]
    assert profile.call_seconds == pytest.approx(inside), "data was waited for on the line of the loop"


def test_a_trace_has_its_parts(tmp_path: Path) -> None:
    step = step_of(Tight(16))
    with trace(tmp_path / "run.json"):
        for _ in range(3):
            step(batch())
    found = Trace(tmp_path / "run.json")
    found.check()
    names = [each["name"] for each in found.tracks()[threading.current_thread().name]]
    assert names.count("train Tight") == names.count("forward") == names.count("backward") == 3
