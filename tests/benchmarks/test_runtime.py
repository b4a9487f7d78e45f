"""The benchmarks of the runtime work, measure what they say, and judge by it; with small counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anygpu.runtime.runtime import Runtime
from benchmarks import runtime, runtime_queue, runtime_together
from benchmarks.faults import Never
from benchmarks.report import Figure
from benchmarks.runtime_figures import AtLeast, Holding, burst
from benchmarks.soak_load import Gate, Tally
from benchmarks.soak_watch import Sample, held, left_over, slope

ROOT = Path(__file__).parents[2]
#: Of all counts, or the least that there can be.
TINY = 1e-3


def value_of(figures: list[Figure], name: str) -> float:
    return next(figure.value for figure in figures if figure.name.startswith(name))


def never(figures: list[Figure]) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures if isinstance(figure, Never)}


def test_a_lower_bound_is_missed_by_what_is_too_small() -> None:
    enough, too_few = (AtLeast(name="n", value=value, unit="/s", bound=100.0) for value in (200.0, 50.0))
    assert (enough.share, too_few.share) == (0.5, 2.0)
    assert "MISSED" in str(too_few)
    assert "MISSED" not in str(enough)
    assert AtLeast(name="n", value=0.0, unit="/s", bound=100.0).share > 1


def test_a_burst_has_a_wait_for_every_task() -> None:
    with Runtime() as running:
        made = burst(running, runtime_queue.empty, [(runtime_queue.ONE,)] * 20, on="numpy")
    assert len(made.waits) == len(made.futures) == 20
    assert 0 < made.waits.max() <= made.seconds
    assert made.p99 <= made.waits.max()


def test_nothing_else_runs_on_numpy_while_it_is_held() -> None:
    with Runtime() as running:
        holding = Holding(running)
        future = running.submit(runtime_queue.empty, runtime_queue.ONE, on="numpy")
        assert not future.done()
        holding.release()
        assert future.result(30) is runtime_queue.ONE


def test_a_full_queue_refuses_the_rest() -> None:
    figures = runtime_queue.queue(TINY)
    assert value_of(figures, "full queue: refused") == value_of(figures, "full queue: submissions") - 1000
    assert not any(never(figures).values())


def test_priority_ten_overtakes() -> None:
    figures = runtime_queue.overtaking(100, urgent=5)
    assert value_of(figures, "priority 10 behind") <= runtime_queue.ROW
    assert all(figure.share <= 1 for figure in figures)


@pytest.mark.full
def test_priority_zero_comes_through_a_flood() -> None:
    figures = runtime_queue.starving(0.5, ageing=0.02)
    assert value_of(figures, "priority 0 under a flood") > 0
    assert value_of(figures, "the flood") > 0


def test_tenants_have_shares() -> None:
    figures = runtime_queue.shares(
        "numpy", 0.3, (runtime_queue.short_sleep, runtime_queue.ONE), (runtime_queue.long_sleep, runtime_queue.ONE)
    )
    assert 0 < value_of(figures, "tenants, numpy: device time") < 100
    assert not any(never(figures).values())


@pytest.mark.full
def test_batches_are_compared_with_one_by_one() -> None:
    items: list[tuple[Any, ...]] = [(x,) for x in runtime_together.vectors(64)]
    figures = runtime_together.faster("chain", runtime_together.chain, items, "opencl", full=False)
    assert value_of(figures, "chain: times faster") > 0
    assert not any(never(figures).values())


def test_what_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        runtime.main(["--what", "nonsense"])
    assert "nonsense" in capsys.readouterr().err


def sample(seconds: float, megabytes: float) -> Sample:
    return Sample(seconds=seconds, resident=int(megabytes * 1e6), children=0, private=0, threads=1, files=3, segments=0)


def test_a_slope_is_not_moved_by_a_peak() -> None:
    samples = [sample(60 * minute, 100 + minute / 30) for minute in range(30)]
    samples[20] = sample(1200, 500)
    assert slope(samples) == pytest.approx(2.0, rel=0.05)
    assert slope(samples[:2]) == 0.0


def test_what_is_left_over_is_seen() -> None:
    before = held()
    with Path(os.devnull).open():
        assert os.devnull in left_over(before.files, held().files)
    assert os.devnull not in left_over(before.files, held().files)
    assert left_over(["a", "a"], ["a", "a", "a", "b"]) == ["a", "b"]


def test_a_gate_waits_until_nobody_works() -> None:
    gate, tally = Gate(), Tally()
    with gate.through(), gate.quiet(patience=0.01) as is_quiet:
        assert not is_quiet
    with gate.quiet() as is_quiet:
        assert is_quiet
    tally.losing("here", ValueError("no"))
    assert (tally.lost, tally.counts["lost in here: ValueError"]) == (1, 1)
    assert "no" in tally.stories["here: ValueError"]


@pytest.mark.full
def test_a_short_soak_prints_its_figures() -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.03", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = {each["name"]: each["value"] for each in json.loads(ended.stdout)["figures"]}
    assert figures["wrong"] == 0, ended.stderr
    assert "private memory slope, at rest" in figures
