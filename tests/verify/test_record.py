"""The record, its schema, what the screen makes of it, and the page that lists those that were sent."""

from __future__ import annotations

import io
import json
import runpy
from pathlib import Path

import jsonschema
import msgspec
import pytest
from rich.console import Console

from anygpu.cli.verify import Screen
from anygpu.testing import fake_device
from anygpu.testing.verify import (
    CallTiming,
    CheckRecord,
    VerifiedDevice,
    VerifiedMachine,
    VerifyRecord,
    WrongCase,
    from_json,
)
from anygpu.testing.verify.running import facts_of

ROOT = Path(__file__).parents[2]

FINDING = WrongCase(
    check="programs",
    case="program 11",
    seed=11,
    kind="differs",
    sentence="output 0 at (0,): 1 expected, 2 came.",
    driver="Fake | Driver 1.2",
    operations=("tanh",),
    program="program(a: float32[6]):\n  t1 = tanh a : float32[6]\n  return t1",
    nodes=2,
    nodes_before=17,
    command="anygpu verify fake:0 --only programs --seed 11",
)
RECORD = VerifyRecord(
    anygpu="1.0",
    date="2026-11-17",
    device=VerifiedDevice(
        id="fake:0", engine="fake", kind="gpu", form="discrete", name="Fake <GPU>", vendor=None, api="Vulkan",
        driver="Fake | Driver 1.2", memory=None, model=None, features=("f16",), limits={},
    ),
    machine=VerifiedMachine(
        system="Linux", processor="CPU", cores=2, memory=1 << 30, python="3.11", libraries={"wgpu": "0.3"},
    ),
    seconds=12.5,
    budget=300,
    disturbed=False,
    checks=(
        CheckRecord(name="programs", proves="It works.", cases=500, tried=40, wrong=1, hosted=2, skipped=0,
                    seconds=12.0, ended="time"),
    ),
    findings=(FINDING,),
    timings=(
        CallTiming(workload="add", elements=1_000_000, seconds=0.002, numpy_seconds=0.001),
        CallTiming(workload="sum", elements=1_000_000, seconds=0.001, numpy_seconds=0.004),
    ),
)  # fmt: skip


def test_it_is_read_as_it_was_written() -> None:
    assert from_json(RECORD.to_json()) == RECORD
    assert not RECORD.is_clean
    assert RECORD.speedup == pytest.approx(2**0.5)
    with pytest.raises(msgspec.ValidationError, match=r"anygpu\.devices/1"):
        from_json(RECORD.to_json().replace(b"anygpu.verify/1", b"anygpu.devices/1"))


def test_the_identity_of_a_card_stays_behind() -> None:
    identity, place = "8a3f21bc111122223333444455556666", "0000:65:00.0"
    device = fake_device("fake:0", uuid=identity, pci=place, card=f"gpu-{identity}", driver="1.2")
    text = msgspec.json.encode(facts_of(device)).decode()
    assert identity not in text
    assert place not in text
    assert facts_of(device).driver == "1.2"


def test_the_schema_describes_it() -> None:
    schema = json.loads((ROOT / "docs/reference/verify.schema.json").read_text())
    jsonschema.validate(json.loads(RECORD.to_json()), schema)


def test_the_records_in_the_repository_are_valid() -> None:
    for path in (ROOT / "reports").glob("*.json"):
        assert from_json(path.read_bytes()).device.id


def test_the_screen_names_everything() -> None:
    text, aside = io.StringIO(), io.StringIO()
    with Screen(Console(file=text, width=100), Console(file=aside), fake_device("fake:0"), 300) as screen:
        screen.found(FINDING)
        screen.ended(RECORD.checks[0])
    screen.show(RECORD, Path("x.json"))
    shown = text.getvalue()
    for part in (
        "✗  programs  40 of 500      1            2        0  12 s  out of time",
        "programs, program 11: it differs, in tanh",
        "The program has 2 nodes (of 17):",
        "      t1 = tanh a : float32[6]",
        "driver: Fake | Driver 1.2",
        "To repeat it: anygpu verify fake:0 --only programs --seed 11",
        "1 of 40 cases is wrong on fake:0. 460 cases were not reached",
        "2.0× slower",
        "4.0× faster",
        "The record is in x.json.",
    ):
        assert part in shown, shown
    assert aside.getvalue().splitlines()[-1] == "programs: 40 of 500 cases in 12 s, 1 wrong"


def test_the_page_of_devices_seen() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "devices-seen"))
    page = script["page"]({"fake.json": RECORD})
    row = next(line for line in page.splitlines() if line.startswith("| Fake"))
    assert row.count(" | ") == 9
    for part in ("Fake &lt;GPU>", r"Fake \| Driver 1.2", "39 of 40", "0.5 to 4, median 4", "`reports/fake.json`"):
        assert part in row
    assert "tanh differs (programs, seed 11; `anygpu verify fake:0 --only programs --seed 11`" in page
    assert "Yours would be the first" not in page
    assert "Yours would be the first" in script["page"]({})
