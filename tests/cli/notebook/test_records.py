"""Receipts, plans, devices, diagnoses and statistics: the page says what the text says."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.base.events import Listed
from anygpu.cli.notebook.outcomes import text_of
from anygpu.cli.notebook.receipts import MOST_ROWS, Keeping, LastCalls, Notice, Said
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.hardware.evidence import gather
from anygpu.hardware.inventory import Finding, Inventory
from anygpu.observe.statistics import CallStatistics, Quantiles, Summary
from anygpu.placement.plan.plan import Candidate, Plan, Refused
from anygpu.receipts.notes import Failure, HostNote
from anygpu.receipts.receipt import Attempt, DriverWork, HostOperation, Phases, Receipt, numpy_receipt
from anygpu.store.report import Copied, Owned, Statistics
from anygpu.testing import fake_device
from tests.cli.notebook.pages import check, html, missing_figures, words

EVIL = '<script>alert("x")</script>\x00'


def receipt(name: str = "score", **given: Any) -> Receipt:
    phases = Phases(trace=0.012, plan=4.3e-5, compile=1.5, queue=2e-6, write=0.0021, run=0.0103, read=7e-4, other=1e-5)
    facts: dict[str, Any] = {
        "task": name,
        "device": "webgpu:0",
        "kind": "gpu",
        "reason": f"calls of {name} take 3.21 ms there.",
        "phases": phases,
        "attempts": (
            Attempt(device="opencl:7", phases=Phases(run=0.1), error="DeviceLost", message=f"{name} was lost"),
            Attempt(device="webgpu:0", phases=phases),
        ),
        "device_seconds": 0.0099,
        "bytes_to_device": 123_456,
        "bytes_to_host": 78,
        "bytes_skipped": 9_999_999,
        "peak_bytes": 5_000_000,
        "predicted_bytes": 4_000_000,
        "parts": {"forward": 0.004, name: 0.006},
        "kernels": 17,
        "driver": DriverWork(allocations=1, compilations=2, submits=3, dispatches=4),
        "host_operations": (HostOperation(operation=name, reason="no such", line=f"{name}.py:12", bytes_moved=64),),
        "node": name,
        "network_bytes": 321,
        "asks": 2,
        "predicted_seconds": 0.0456,
        "how": "in 12 chunks of at most 1000",
        "program": name,
    }
    return Receipt(**{**facts, **given})


def test_a_receipt_has_every_figure_of_its_text() -> None:
    shown = html(receipt())
    check(shown)
    assert not missing_figures(str(receipt()), shown)
    for fact in ("120.6 KiB", "78 bytes", "9.5 MiB", "4.8 MiB", "9.9 ms", "17", "3 submits", "321 bytes", "64 bytes"):
        assert fact in words(shown)


def test_a_receipt_of_numpy_says_why_something_is_not_known() -> None:
    plain = numpy_receipt("f", "it is new.", Phases(run=0.5), None)
    shown = html(plain)
    check(shown)
    assert "f ran on numpy in 500 ms: it is new." in words(shown)
    assert "unknown: the function ran untraced" in words(shown)


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1e4), min_size=8, max_size=8))
def test_the_phases_of_any_receipt_are_those_of_its_text(seconds: list[float]) -> None:
    names = ("trace", "plan", "compile", "queue", "write", "run", "read", "other")
    any_receipt = numpy_receipt("f", "so.", Phases(**dict(zip(names, seconds, strict=True))), 1.0)
    assert not missing_figures(str(any_receipt), html(any_receipt))


def test_many_receipts_are_a_table() -> None:
    many: Listed[Receipt] = Listed([receipt(f"f{number}") for number in range(MOST_ROWS + 7)])
    shown = html(many)
    check(shown)
    assert "32 calls in 48.8 s: 32 on webgpu:0. The last 25 are below." in words(shown)
    assert "f31" in words(shown)
    assert "f6 " not in words(shown)


def test_the_last_calls_are_kept_with_those_that_raised() -> None:
    keeping = Keeping()
    keeping(receipt(), None)
    keeping(Failure("divide", "numpy", "ZeroDivisionError", 1.0, 1.5), None)
    keeping((HostNote("g", "it is small.", None), 1.0, 1.25, 2.0), None)
    last = keeping.last(2)
    assert repr(last).splitlines()[0] == "divide raised ZeroDivisionError on numpy after 500 ms."
    shown = html(last)
    check(shown)
    assert "2 calls in 1.5 s: 2 on numpy; 1 raised." in words(shown)
    assert words(shown).index("divide") < words(shown).index("it is small")
    assert "No offloaded function" in repr(LastCalls())
    check(html(LastCalls()))


def plan(name: str = "score") -> Plan:
    return Plan(
        task=name,
        chosen="numpy",
        reason=f"{name} takes 10.3 ms there.",
        candidates=(
            Candidate(device="numpy", seconds=0.0103, basis="measured", sentence="earlier calls took 10.3 ms."),
            Candidate(
                device="webgpu:0",
                seconds=0.104,
                basis="assumed",
                phases=Phases(write=0.00177, run=0.102, read=1.01e-4),
                how=f"in 3 pieces of {name}",
                network_seconds=0.0077,
                sentence=name,
            ),
        ),
        refused=(Refused("opencl:0", f"{name} is not there"),),
        program="abc",
        bytes_in=5_000_000,
        bytes_out=2048,
        flops=1_002_000_500,
    )


def test_a_plan_has_every_figure_of_its_text() -> None:
    shown = html(plan())
    check(shown)
    assert not missing_figures(str(plan()), shown)
    assert "score would run on numpy: score takes 10.3 ms there." in words(shown)
    assert "score is not there" in words(shown)


def test_a_plan_without_a_program_says_why() -> None:
    bare = Plan(task="f", chosen="numpy", reason="so.", candidates=(), not_recorded="it prints")
    check(html(bare))
    assert "Not traced: it prints" in words(html(bare))


def device(name: str = "llvmpipe") -> Device:
    return fake_device("webgpu:0", name=name, limits={"max-buffer-size": 2_147_483_647})


def test_a_device_and_a_list_of_devices() -> None:
    check(html(device()))
    listed = Listed([device(), device("other")])
    shown = html(listed)
    check(shown)
    assert "llvmpipe" in words(shown)
    assert "2,147,483,647" in words(shown)
    assert "llvmpipe" in text_of(listed)


def test_a_list_with_a_page_is_a_list() -> None:
    listed = Listed([device()])
    assert listed == [device()]
    assert type(listed[:1]) is list
    assert pickle.loads(pickle.dumps(listed)) == listed
    assert msgspec.json.encode(listed) == msgspec.json.encode([device()])
    assert Listed()._repr_html_() is None
    assert Listed([1, "x"])._repr_html_() is None
    assert text_of(Listed()) == "[]"


def diagnosis(name: str = "GPU") -> Diagnosis:
    missing = Unavailable(
        id="torch:cuda", engine="torch", state="absent", cause="no_device", reason=f"{name} is gone.", fix=name
    )
    finding = Finding(
        code="x", severity="problem", title=f"{name} is idle", cause=f"because of {name}", fix=(name, "b")
    )
    inventory = Inventory(devices=(device(name),), unavailable=(missing,))
    return Diagnosis(verdict=f"There is {name}.", findings=(finding,), inventory=inventory, evidence=gather())


def test_a_diagnosis_has_its_verdict_its_findings_and_their_fixes() -> None:
    shown = html(diagnosis())
    check(shown)
    for sentence in ("There is GPU.", "Problem: GPU is idle", "because of GPU", "→ b", "GPU is gone. GPU"):
        assert sentence in words(shown)
    assert "problem: GPU is idle" in text_of(diagnosis())


def statistics(name: str = "score") -> Summary:
    quantiles = Quantiles(count=1234, total=5.67, p50=0.0012, p90=0.0034, p99=None, most=0.9)
    each = CallStatistics(
        function=name,
        device="webgpu:0",
        calls=1234,
        errors={name: 3},
        fallbacks=2,
        host_operations=0,
        bytes_to_device=1 << 20,
        bytes_to_host=1 << 19,
        bytes_skipped=0,
        compilations=1,
        phases={"run": 5.0, "plan": 0.67},
        predicted_seconds=0.0,
        seconds_of_predicted=0.0,
        seconds=quantiles,
        lately=quantiles,
    )
    return Summary(seconds=61.0, calls=(each,))


def test_statistics_have_every_figure_of_their_text() -> None:
    shown = html(statistics())
    check(shown)
    assert not missing_figures(str(statistics()).replace("1234", "1,234"), shown)


@pytest.mark.parametrize("empty", [Summary(seconds=2.0, calls=()), Summary(seconds=0.0, calls=(), observed=False)])
def test_statistics_of_nothing_say_so(empty: Summary) -> None:
    check(html(empty))
    assert words(html(empty)) == str(empty)


def store(name: str = "models") -> Statistics:
    return Statistics(
        name=name,
        device="webgpu:0",
        mode="balanced",
        tensors=7,
        contents=5,
        bytes=10_000,
        bytes_saved=2_000,
        device_bytes=8_000,
        host_bytes=3_000,
        disk_bytes=1_000,
        elsewhere_bytes=0,
        lingering_bytes=0,
        peak_device_bytes=9_000,
        budget=1 << 20,
        host_budget=None,
        leases=1,
        pinned=0,
        copies={"to_device": Copied(4, 4096)},
        evictions=1,
        returns=1,
        fetched_ahead=0,
        by_owner={name: Owned(7, 10_000)},
    )


def test_statistics_of_a_store_have_every_figure_of_their_text() -> None:
    check(html(store()))
    assert not missing_figures(str(store()), html(store()))


@pytest.mark.parametrize(
    "value",
    [
        receipt(EVIL),
        Listed([receipt(EVIL)]),
        LastCalls([receipt(EVIL), Failure(EVIL, EVIL, EVIL, 0.0, 1.0)]),
        plan(EVIL),
        device(EVIL),
        Listed([device(EVIL)]),
        diagnosis(EVIL),
        statistics(EVIL),
        store(EVIL),
        Notice([Said(EVIL, EVIL)]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_hostile_names_stay_text(value: Any) -> None:
    shown = html(value)
    check(shown)
    assert '<script>alert("x")</script>\N{REPLACEMENT CHARACTER}' in words(shown)
