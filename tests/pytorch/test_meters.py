"""Meters of memory: what a process took at most, and what it may still take."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from anygpu.engines.torch.engine import CudaMeter, NoMeter, meter_for
from anygpu.hardware.resident_memory import HostMeter, available
from tests.support.counting_allocator import environment

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Path]:
    """Files as Linux has them, of a process that has 3 GiB mapped on a machine with 8 GiB to give."""
    process, cgroup, meminfo = tmp_path / "self", tmp_path / "cgroup", tmp_path / "meminfo"
    process.mkdir()
    cgroup.mkdir()
    (process / "status").write_text(
        f"Name:\tx\nVmSize:\t{3 << 20} kB\nVmHWM:\t{1 << 20} kB\nVmRSS:\t{1 << 19} kB\nVmData:\t{2 << 20} kB\n"
    )
    (process / "cgroup").write_text("0::/\n")
    meminfo.write_text(f"MemTotal: {16 * 1024 * 1024} kB\nMemAvailable: {8 * 1024 * 1024} kB\n")
    return {"process": process, "cgroup": cgroup, "meminfo": meminfo}


def group(folder: Path, limit: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


class TestAvailable:
    def test_is_what_the_machine_has_where_nothing_limits(self, machine: dict[str, Path]) -> None:
        assert available(**machine, limits=(-1, -1)) == 8 << 30

    def test_an_address_space_that_is_limited(self, machine: dict[str, Path]) -> None:
        assert available(**machine, limits=(4 << 30, -1)) == 1 << 30

    def test_data_that_is_limited(self, machine: dict[str, Path]) -> None:
        assert available(**machine, limits=(-1, 5 << 29)) == 1 << 29

    def test_is_not_negative(self, machine: dict[str, Path]) -> None:
        assert available(**machine, limits=(1 << 30, -1)) == 0

    def test_a_control_group_and_those_around_it(self, machine: dict[str, Path]) -> None:
        (machine["process"] / "cgroup").write_text("0::/outer/inner\n")
        group(machine["cgroup"] / "outer", str(4 << 30), 3 << 30)
        group(machine["cgroup"] / "outer" / "inner", "max", 1 << 30)
        assert available(**machine, limits=(-1, -1)) == 1 << 30

    def test_files_that_were_read_make_room(self, machine: dict[str, Path]) -> None:
        group(machine["cgroup"], str(4 << 30), 4 << 30, cached=1 << 30)
        assert available(**machine, limits=(-1, -1)) == 1 << 30

    def test_a_container_that_sees_its_group_as_the_root(self, machine: dict[str, Path]) -> None:
        (machine["process"] / "cgroup").write_text("0::/kubepods/pod7\n")
        group(machine["cgroup"], str(2 << 30), 1 << 30)
        assert available(**machine, limits=(-1, -1)) == 1 << 30

    def test_groups_of_version_1(self, machine: dict[str, Path]) -> None:
        (machine["process"] / "cgroup").write_text("5:cpu:/a\n4:memory:/a\n0::/\n")
        folder = machine["cgroup"] / "memory" / "a"
        folder.mkdir(parents=True)
        (folder / "memory.limit_in_bytes").write_text(str(3 << 30))
        (folder / "memory.usage_in_bytes").write_text(str(1 << 30))
        (folder.parent / "memory.limit_in_bytes").write_text(str(9223372036854771712))  # none
        (folder.parent / "memory.usage_in_bytes").write_text(str(1 << 30))
        assert available(**machine, limits=(-1, -1)) == 2 << 30

    def test_of_this_machine_is_a_number(self) -> None:
        found = available()
        assert found is not None
        assert found > 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux resets the mark")
class TestHost:
    def test_sees_what_was_taken_and_given_back(self) -> None:
        meter = HostMeter()
        meter.begin()
        before = meter.peak()
        assert before is not None
        now = meter.now()
        assert now is not None
        assert abs(before - now) < 8 * MIB
        tensor = torch.ones(64 * MIB, dtype=torch.uint8)
        del tensor
        peak = meter.peak()
        assert peak is not None
        assert peak - before >= 60 * MIB
        meter.begin()
        after = meter.peak()
        assert after is not None
        assert after - before < 32 * MIB

    def test_pages_of_files_that_the_system_drops_hide_nothing(self, tmp_path: Path) -> None:
        file = tmp_path / "library"
        file.write_bytes(bytes(64 * MIB))
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as pages:
            assert sum(pages[:: mmap.PAGESIZE]) == 0
            meter = HostMeter()
            meter.begin()
            before = meter.now()
            assert before is not None
            pages.madvise(mmap.MADV_DONTNEED)
            tensor = torch.ones(32 * MIB, dtype=torch.uint8)
            del tensor
            peak = meter.peak()
        assert peak is not None
        assert 30 * MIB <= peak - before < 128 * MIB

    def test_without_the_right_to_reset_nothing_is_known(self, tmp_path: Path) -> None:
        (tmp_path / "status").write_text("VmHWM: 5 kB\n")
        (tmp_path / "clear_refs").mkdir()
        meter = HostMeter(tmp_path)
        meter.begin()
        assert meter.peak() is None


class TestCuda:
    """Through a stand-in for torch's functions: no card has run this."""

    def test_takes_torchs_statistics(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Any] = []
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 700)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 8000))
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 1.0, raising=False)
        device = torch.device("cuda", 1)
        meter = meter_for(device)
        assert isinstance(meter, CudaMeter)
        meter.begin()
        assert asked == [device]
        assert (meter.peak(), meter.now(), meter.free()) == (700, 300, 1200)

    def test_what_the_user_withholds_is_not_free(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 300)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 300)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (6000, 8000))
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.25, raising=False)
        assert CudaMeter(torch.device("cuda")).free() == 1700


def test_elsewhere_nothing_is_known() -> None:
    meter = meter_for(torch.device("meta"))
    assert isinstance(meter, NoMeter)
    meter.begin()
    assert (meter.peak(), meter.now(), meter.free()) == (None, None, None)


_COUNTED = """
import ctypes
from tests.support.counting_allocator import CountingAllocator
allocator = CountingAllocator()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.realloc.restype = libc.aligned_alloc.restype = ctypes.c_void_p
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
MIB = 1 << 20

def risen(before):
    return round((allocator.current() - before) / MIB)

before = allocator.current()
allocator.reset()
one = libc.malloc(8 * MIB)
assert risen(before) == 8
one = libc.realloc(one, 24 * MIB)
assert risen(before) == 24
two = libc.aligned_alloc(4096, 16 * MIB)
assert risen(before) == 40
libc.free(one)
libc.free(two)
assert risen(before) == 0
assert round((allocator.peak() - before) / MIB) == 40
allocator.reset()
assert allocator.peak() - before < MIB
allocator.limit(allocator.current() + 10 * MIB)
assert libc.malloc(11 * MIB) is None
kept = libc.malloc(4 * MIB)
assert libc.realloc(kept, 20 * MIB) is None
into = ctypes.c_void_p()
assert libc.posix_memalign(ctypes.byref(into), 64, 11 * MIB) == 12
assert allocator.refused() == 3
allocator.limit(None)
libc.free(libc.malloc(11 * MIB))
libc.free(kept)
assert risen(before) == 0
print("counted")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
class TestCountingAllocator:
    def test_counts_and_refuses(self) -> None:
        child = subprocess.run(
            [sys.executable, "-c", _COUNTED],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert child.stdout == "counted\n", child.stderr
