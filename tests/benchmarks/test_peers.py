"""The comparison with numexpr, Numba, JAX and torch: the tools' versions agree, and what a run says follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.cells import Timing
from benchmarks.peers import __main__ as command
from benchmarks.peers.in_numpy import FUNCTIONS
from benchmarks.peers.measuring import measure, why_not
from benchmarks.peers.page import page_of, table_of
from benchmarks.peers.results import Cell, Installed, Run, figures_of, speeds
from benchmarks.peers.tolerances import SHARE_THAT_MAY_DIFFER, share_that_differs
from benchmarks.peers.tools import TOOLS, Tool
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.report import Machine

ROOT = Path(__file__).parents[2]
PAGE, RESULTS = ROOT / "docs" / "benchmarks-peers.md", ROOT / "benchmarks" / "results" / "peers.json"
NAMED = {tool.name: tool for tool in TOOLS}


def small_arguments(name: str) -> tuple[Any, ...]:
    """Of the kinds that the workload has, and few enough for a test."""
    rng = np.random.default_rng(3)
    f32 = np.float32
    return {
        "black_scholes": (rng.uniform(5, 30, 50), rng.uniform(1, 100, 50), rng.uniform(0.25, 10, 50)),
        "softmax": (rng.standard_normal((5, 9), f32),),
        "distances": (rng.standard_normal((6, 3), f32), rng.standard_normal((4, 3), f32)),
        "kmeans": (rng.standard_normal((40, 3), f32), rng.standard_normal((4, 3), f32)),
        "edges": (rng.random((20, 17), f32),),
        "nbody": (rng.normal(size=(9, 3)), rng.normal(size=(9, 3)), rng.uniform(1, 2, 9)),
        "perceptron": (rng.standard_normal((6, 5), f32), rng.random((5, 4), f32), rng.random((4, 3), f32)),
        "statistics": (rng.gamma(2.0, size=(31, 4)),),
        "low_pass": (rng.normal(size=(3, 101)),),
        "mandelbrot": (np.linspace(-2, 0.7, 12)[None, :] + 1j * np.linspace(-1.2, 1.2, 9)[:, None],),
        "small": (rng.normal(size=100),),
    }[name]


def differing(tool: Tool, name: str) -> float:
    """The share of elements in which a tool's version of a workload differs from NumPy's."""
    module: Any = import_module(f"benchmarks.peers.{tool.module}")
    arguments = small_arguments(name)
    expected: Any = FUNCTIONS[name](*arguments)
    own = [module.own_array(each) for each in arguments] if hasattr(module, "own_array") else arguments
    found = module.function(name)(*own)
    if not isinstance(expected, tuple):
        expected, found = (expected,), (found,)
    return max(share_that_differs(np.asarray(a), np.asarray(b)) for a, b in zip(expected, found, strict=True))


@pytest.fixture(scope="module", autouse=True)
def precision_of_jax() -> Iterator[None]:
    """JAX's version of the workloads changes it for its whole process, which is this one here."""
    import jax

    before = jax.config.jax_enable_x64
    import_module("benchmarks.peers.in_jax")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("tool", ["JAX", "torch", "numexpr"])
def test_versions_compute_what_numpy_does(tool: str, name: str) -> None:
    assert differing(NAMED[tool], name) <= SHARE_THAT_MAY_DIFFER


@pytest.mark.long  # Numba compiles each for seconds, and is installed only for the benchmark
def test_loops_compute_what_numpy_does() -> None:
    numba = NAMED["Numba"]
    found = {name: differing(numba, name) for name in FUNCTIONS if name not in numba.cannot}
    assert max(found.values()) <= SHARE_THAT_MAY_DIFFER, found


def test_every_workload_has_a_function() -> None:
    assert [each.name for each in WORKLOADS] == list(FUNCTIONS)


def test_results_are_told_apart() -> None:
    a = np.array([1.0, 2.0, np.nan, 1000.0])
    assert share_that_differs(a, a + 1e-8) == 0
    assert share_that_differs(a, a + np.array([1e-3, 0, 0, 0])) == 0.25
    assert share_that_differs(a, a[:3]) == 1
    assert share_that_differs(np.array([1, 2]), np.array([1, 3])) == 0.5


def test_a_process_of_its_own() -> None:
    """A real one, with the tool that loads fastest; and a tool that fails has its last words in its cell."""
    (workload,) = [each for each in WORKLOADS if each.name == "small"]
    broken = msgspec.structs.replace(NAMED["NumPy"], name="broken", module="in_nothing")
    good, bad = measure(workload, [NAMED["NumPy"], broken], rounds=1)
    assert good.timing is not None
    assert good.first is not None
    assert 0 < good.timing.seconds < good.first < 60
    assert good.peak_bytes > 10 << 20
    assert not good.wrong
    assert good.calls > 3
    assert bad.reason.startswith("It ended with status 1: ModuleNotFoundError")


def test_what_a_tool_cannot_do_has_a_reason() -> None:
    (filter_,) = [each for each in WORKLOADS if each.name == "low_pass"]
    absent = msgspec.structs.replace(NAMED["numexpr"], imports="no_such_library")
    assert "Fourier" in why_not(NAMED["Numba"], filter_)
    assert why_not(absent, filter_) == "It is not installed here: pip install numexpr."
    assert why_not(NAMED["NumPy"], filter_) == ""


def cell(tool: str, seconds: float, *, workload: str = "softmax", **fields: Any) -> Cell:
    timing = Timing(seconds=seconds, best=seconds, median=seconds, samples=3)
    return Cell(workload=workload, tool=tool, first=1.0, timing=timing, peak_bytes=50 << 20, **fields)


def made_up(*cells: Cell) -> Run:
    machine = Machine(processor="a processor", cores=2, memory=8 << 30, system="Linux", python="3.11")
    installed = (Installed(tool="NumPy", bytes=40 << 20, packages=("numpy 2.4",)),)
    return Run(
        machine=machine,
        date="2026-11-17",
        load=0.1,
        versions={},
        rounds=5,
        cells=cells,
        installed=installed,
    )


def test_only_ours_are_judged() -> None:
    run = made_up(cell("NumPy", 1e-3), cell("torch", 9e-3), cell("anygpu", 1.2e-3))
    found = {each.name: each for each in figures_of(run, ["anygpu"], ["torch", "JAX"])}
    assert found["anygpu, softmax: by NumPy"].share > 1
    assert found["anygpu, softmax: first result after NumPy's"].value == 0
    assert found["anygpu: wrong results"].value == 0
    assert found["anygpu: by NumPy, mean"].share == pytest.approx(12)
    assert found["anygpu: by torch, mean of 1"].value == pytest.approx(1.2 / 9)
    assert not [name for name in found if name.startswith("torch") or "JAX" in name]


def test_a_call_that_is_all_overhead_is_judged_by_microseconds() -> None:
    run = made_up(cell("NumPy", 5e-6, workload="small"), cell("anygpu", 5e-6, workload="small", differing=0.5))
    found = {each.name: each for each in figures_of(run, ["anygpu"])}
    assert found["anygpu, small: a call"].share == pytest.approx(1.25)
    assert found["anygpu: wrong results"].share > 1


def test_a_page_shows_winners_reasons_and_what_is_wrong() -> None:
    run = made_up(
        cell("NumPy", 4e-3),
        Cell(workload="softmax", tool="Numba", reason="It is not here."),
        cell("torch", 1e-3),
        cell("JAX", 0.5e-3, differing=0.02),
        cell("anygpu", 4.1e-3, device="numpy"),
    )
    page = page_of(run)
    assert "| 4 ms | — (1) | **1 ms** | **wrong** (2.0% differ) | 4.1 ms <br>numpy |" in page
    assert "1. It is not here." in page
    assert "torch, 4 times as fast as NumPy, because softmax is one of its operations (anygpu 0.98×)" in page
    assert speeds(run, "JAX") == {}
    assert "it was quiet" in page
    assert "A peer was more than twice as fast at softmax of rows" in page
    assert "WRONG" in table_of(run)


def test_the_page_is_that_of_the_saved_run() -> None:
    assert PAGE.read_text() == page_of(msgspec.json.decode(RESULTS.read_bytes(), type=Run))


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    options = ["--json", str(file), "--workloads", "small", "--tools", "NumPy", "--rounds", "1", "--no-installs"]
    command.main(options)
    first = file.read_bytes()
    command.main([*options, "--resume"])
    assert file.read_bytes() == first
    assert "small" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="'smal' is none of black_scholes"):
        command.main(["--workloads", "smal"])
