from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from anygpu.engines.catalogue import BUILT_IN
from anygpu.hardware.device import Cause, Device, Unavailable
from anygpu.hardware.evidence import Evidence, Manifest
from anygpu.testing import fake_device
from anygpu.workers.discovery import VALID_SECONDS, fingerprint, read_cached, without_stale_facts, write_cached

EVIDENCE = Evidence(
    system="Linux", release="6.1", machine="x86_64", python="3.11.7", libraries={"anygpu": "0.1", "torch": "2.13.0"}
)
WEBGPU = next(entry for entry in BUILT_IN if entry.name == "webgpu")
GOOD = fake_device("webgpu:0", state="verified")


def missing(cause: Cause) -> Unavailable:
    return Unavailable(id="webgpu", engine="webgpu", state="absent", cause=cause, reason="It is not there.")


def test_what_was_found_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "probes.json"
    write_cached(path, {"webgpu": [GOOD, missing("no_device")]}, {"webgpu": "print"}, now=1000.0)
    found = read_cached(path, {"webgpu": "print"}, now=1010.0)
    assert found["webgpu"].items == (GOOD, missing("no_device"))
    assert found["webgpu"].probed_at == 1000.0


def test_another_fingerprint_a_day_later_or_a_clock_set_back_is_as_good_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "probes.json"
    write_cached(path, {"webgpu": [GOOD]}, {"webgpu": "print"}, now=1000.0)
    assert read_cached(path, {"webgpu": "other"}, now=1001.0) == {}
    assert read_cached(path, {"webgpu": "print"}, now=1000.0 + VALID_SECONDS) == {}
    assert read_cached(path, {"webgpu": "print"}, now=999.0) == {}
    assert read_cached(path, {}, now=1001.0) == {}


@pytest.mark.parametrize("cause", ["hung", "crashed", "garbage", "failed", "lost", "wrong_result", "import_failed"])
def test_a_bad_outcome_is_not_remembered(tmp_path: Path, cause: Cause) -> None:
    path = tmp_path / "probes.json"
    write_cached(path, {"webgpu": [GOOD, missing(cause)]}, {"webgpu": "print"}, now=1000.0)
    assert read_cached(path, {"webgpu": "print"}, now=1001.0) == {}


def test_a_device_that_was_not_verified_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "probes.json"
    write_cached(path, {"webgpu": [fake_device("webgpu:0")]}, {"webgpu": "print"}, now=1000.0)
    assert read_cached(path, {"webgpu": "print"}, now=1001.0) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"webgpu": {"fingerprint": 7}}', b"\x00\xff", b"null"])
def test_a_torn_or_foreign_file_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "probes.json"
    path.write_bytes(content)
    assert read_cached(path, {"webgpu": "print"}, now=1.0) == {}
    write_cached(path, {"webgpu": [GOOD]}, {"webgpu": "print"}, now=1.0)
    assert "webgpu" in read_cached(path, {"webgpu": "print"}, now=2.0)
    assert [file.name for file in tmp_path.iterdir()] == ["probes.json"]


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    write_cached(tmp_path / "file" / "probes.json", {"webgpu": [GOOD]}, {"webgpu": "print"}, now=1.0)


def test_engines_are_kept_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "probes.json"
    prints = {"webgpu": "a", "torch": "b"}
    write_cached(path, {"webgpu": [GOOD]}, prints, now=1.0)
    write_cached(path, {"torch": [fake_device("torch:cpu", state="verified")]}, prints, now=2.0)
    assert set(read_cached(path, prints, now=3.0)) == {"webgpu", "torch"}


def test_what_is_stored_of_engines_that_were_not_asked_for_stays(tmp_path: Path) -> None:
    """Engines are probed one by one, and each writes what it has."""
    path = tmp_path / "probes.json"
    torch = fake_device("torch:cpu", engine="torch", state="verified")
    write_cached(path, {"webgpu": [GOOD]}, {"webgpu": "print"}, now=1000.0)
    write_cached(path, {"torch": [torch]}, {"torch": "another"}, now=1001.0)
    assert set(read_cached(path, {"webgpu": "print", "torch": "another"}, now=1002.0)) == {"webgpu", "torch"}
    # Not for longer than a day, and not where the drivers are others.
    write_cached(path, {}, {"webgpu": "changed"}, now=1003.0)
    assert set(read_cached(path, {"webgpu": "print", "torch": "another"}, now=1004.0)) == {"torch"}


def test_the_fingerprint_changes_with_the_machine_and_the_engines_own_library_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = fingerprint(WEBGPU, EVIDENCE)
    assert fingerprint(WEBGPU, EVIDENCE) == before
    newer_torch = msgspec.structs.replace(EVIDENCE, libraries={"anygpu": "0.1", "torch": "9.9"})
    assert fingerprint(WEBGPU, newer_torch) == before
    for change in (
        {"release": "6.2"},
        {"vulkan_drivers": (Manifest(path="/icd.json", changed=1.0),)},
        {"nvidia_module": "550.54"},
        {"variables": {"VK_ICD_FILENAMES": "/x"}},
        {"libraries": {"anygpu": "0.2"}},
    ):
        assert fingerprint(WEBGPU, msgspec.structs.replace(EVIDENCE, **change)) != before, change
    monkeypatch.setattr("anygpu.workers.discovery.version_of", lambda name: f"{name} 99")
    assert fingerprint(WEBGPU, EVIDENCE) != before


def test_facts_that_change_all_the_time_are_not_taken_from_the_cache() -> None:
    gpu = without_stale_facts(fake_device("torch:cuda:0", state="verified", load=0.5))
    assert isinstance(gpu, Device)
    assert gpu.memory_free is None
    assert gpu.load is None
    assert "last probed" in gpu.unknown["memory_free"]
    processor = without_stale_facts(fake_device("numpy", kind="cpu", state="verified", memory=1 << 20))
    assert isinstance(processor, Device)
    assert processor.memory_free == 1 << 20, "free now, and never more than there is"
