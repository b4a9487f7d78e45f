from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from anygpu.hardware import nvidia
from anygpu.hardware.device import Card, Unavailable
from tests.standins.nvidia import build_nvml, environment, hide_nvml

CHILD = """
import sys
from pathlib import Path

import msgspec
import pynvml

from anygpu.hardware import nvidia
from anygpu.hardware.device import Card

print("begins", flush=True)
found = nvidia.read(system=Path(sys.argv[1]))
print(msgspec.json.encode([(isinstance(one, Card), one) for one in found]).decode())
"""

RTX_4090 = Card(
    id="nvidia:0",
    vendor="NVIDIA",
    name="NVIDIA GeForce RTX 4090",
    source="nvml",
    memory_total=24564 << 20,
    memory_free=20000 << 20,
    driver="550.54.14",
    driver_api="12.4",
    compute_capability="8.9",
    load=0.37,
    uuid="0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    pci="0000:01:00.0",
    model="10de:2684",
)
T4 = Card(
    id="nvidia:1",
    vendor="NVIDIA",
    name="Tesla T4",
    source="nvml",
    memory_total=15360 << 20,
    memory_free=15101 << 20,
    driver="550.54.14",
    driver_api="12.4",
    compute_capability="7.5",
    load=0.0,
    uuid="ffeeddccbbaa99887766554433221100",
    pci="0000:65:00.0",
    model="10de:1eb8",
)

ROW = "0, NVIDIA GeForce RTX 4090, GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9, 00000000:01:00.0, 24564, 20000, 550.54.14"
NO_NVML = "nvidia-smi does not list it, and NVML, which would tell, is missing"
RESTART = (
    "Run `nvidia-smi` in a terminal to see what it says, then restart the machine; in a container, restart the "
    "container first."
)
JOIN_GROUPS = (
    "See with `ls -l /dev/nvidia*` which group may open the cards, join it with `sudo usermod -aG {} $USER`, and log "
    "in again. Start a container with `--gpus all`."
)
RESET = "Check the card's power cable and its seat, then reset it with `sudo nvidia-smi -r` or restart the machine."


def changed(card: Card, **facts: Any) -> Card:
    return msgspec.structs.replace(card, **facts)


class Machine:
    """A machine as a child process of ours sees it: what is installed, and what the kernel tells in its files."""

    def __init__(self, directory: Path) -> None:
        self.system = directory / "system"
        self.log = directory / "log"
        self.programs = directory / "programs"
        self.library = hide_nvml(directory / "no library")
        self.system.mkdir()

    def command(self) -> list[str]:
        return [sys.executable, "-c", CHILD, str(self.system)]

    def environment(self, scenario: str | None) -> dict[str, str]:
        return environment(library=self.library, programs=self.programs, scenario=scenario, log=self.log)

    def read(self, scenario: str | None = None) -> list[Card | Unavailable]:
        child = subprocess.run(
            self.command(), env=self.environment(scenario), capture_output=True, check=False, text=True, timeout=60
        )
        assert (child.returncode, child.stderr) == (0, "")
        found = msgspec.json.decode(child.stdout.splitlines()[-1], type=list[tuple[bool, dict[str, Any]]])
        return [
            msgspec.convert(facts, Card) if is_card else msgspec.convert(facts, Unavailable) for is_card, facts in found
        ]

    def calls(self) -> list[str]:
        return self.log.read_text().split()

    def tell(self, name: str, text: str) -> Path:
        file = self.system / name
        file.parent.mkdir(parents=True)
        file.write_text(text)
        return file


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def with_nvml(machine: Machine, nvml_library: Path) -> Machine:
    machine.library = nvml_library
    return machine


def test_our_codes_are_those_of_the_bindings() -> None:
    theirs = {code: getattr(pynvml, f"NVML_ERROR_{code.name}", None) for code in nvidia.NvmlCode}
    # The oldest bindings that we allow have no name for this one.
    if theirs[nvidia.NvmlCode.GPU_NOT_FOUND] is None:
        del theirs[nvidia.NvmlCode.GPU_NOT_FOUND]
    assert theirs == {code: code.value for code in theirs}


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for NVML is a Linux shared library")
class TestNvml:
    def test_two_cards(self, with_nvml: Machine) -> None:
        assert with_nvml.read("two_cards") == [RTX_4090, T4]
        assert with_nvml.calls() == ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2", "nvmlShutdown"]

    def test_old_driver(self, with_nvml: Machine) -> None:
        old = {"driver": "440.33.01", "driver_api": "10.2"}
        assert with_nvml.read("old_driver") == [changed(RTX_4090, **old), changed(T4, **old)]

    def test_a_refused_fact_costs_only_that_fact(self, with_nvml: Machine) -> None:
        why = "the card or its driver does not report it"
        lost: dict[str, Any] = {
            "memory_total": None,
            "memory_free": None,
            "unknown": {"memory_total": why, "memory_free": why},
        }
        assert with_nvml.read("no_memory_info") == [changed(RTX_4090, **lost), changed(T4, **lost)]

    def test_a_missing_libcuda_is_not_a_missing_nvml(self, with_nvml: Machine) -> None:
        why = {"driver_api": "the driver's library that knows it (libcuda) cannot be loaded"}
        assert with_nvml.read("no_libcuda") == [
            changed(RTX_4090, driver_api=None, unknown=why),
            changed(T4, driver_api=None, unknown=why),
        ]

    def test_an_odd_identity_is_unknown(self, with_nvml: Machine) -> None:
        first, second = with_nvml.read("odd_identity")
        assert isinstance(first, Card)
        assert isinstance(second, Card)
        assert (first.uuid, first.pci, first.model) == (None, None, "10de:2684")
        assert set(first.unknown) == {"uuid", "pci"}
        assert first.unknown["uuid"] == "the driver's answer cannot be read: GPU-42"
        assert "busId: somewhere" in first.unknown["pci"]

    def test_a_function_that_the_library_lacks_costs_its_facts(self, machine: Machine, tmp_path: Path) -> None:
        machine.library = build_nvml(tmp_path / "old", without=["nvmlDeviceGetPciInfo_v3"])
        why = "the driver is too old to report it"
        lost: dict[str, Any] = {"pci": None, "model": None, "unknown": {"pci": why, "model": why}}
        assert machine.read("two_cards") == [changed(RTX_4090, **lost), changed(T4, **lost)]

    @pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
    def test_driver_too_old(self, machine: Machine, tmp_path: Path, function: str) -> None:
        machine.library = build_nvml(tmp_path / "old", without=[function])
        assert machine.read("two_cards") == [
            Unavailable(
                id="nvidia",
                engine="nvidia",
                state="present",
                cause="driver_too_old",
                reason="NVIDIA's driver is too old to report NVIDIA's cards: its library lacks a function that is "
                "needed for it.",
                fix="Install a newer driver with the system's package manager or from https://www.nvidia.com/drivers, "
                "then restart the machine.",
                detail="Function Not Found",
            )
        ]

    def test_driver_not_loaded(self, with_nvml: Machine) -> None:
        assert with_nvml.read("driver_not_loaded") == [
            Unavailable(
                id="nvidia",
                engine="nvidia",
                state="absent",
                cause="no_driver",
                reason="NVIDIA's driver is not running, so NVIDIA's cards cannot be reached.",
                fix="Install NVIDIA's driver, or start it with `sudo modprobe nvidia`; if that fails, restart the "
                "machine. For a container, do so on the host.",
                detail="Driver Not Loaded",
            )
        ]
        assert with_nvml.calls() == ["nvmlInitWithFlags"]

    @pytest.mark.parametrize(
        ("file", "text", "kernel"),
        [
            ("sys/module/nvidia/version", "535.104.05\n", "535.104.05"),
            (
                "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
                "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n",
                "535.104.05",
            ),
            ("proc/driver/other/version", "535.104.05\n", "version unknown"),
        ],
    )
    def test_mismatch(self, with_nvml: Machine, file: str, text: str, kernel: str) -> None:
        with_nvml.tell(file, text)
        assert with_nvml.read("mismatch") == [
            Unavailable(
                id="nvidia",
                engine="nvidia",
                state="present",
                cause="driver_mismatch",
                reason=f"The kernel module of NVIDIA's driver that is loaded ({kernel}) and the library that programs "
                "use (550.54.14) differ in version, as after an update of the driver.",
                fix="Restart the machine, or reload the modules with `sudo modprobe -r nvidia_uvm nvidia_drm "
                "nvidia_modeset nvidia && sudo modprobe nvidia`. In a container: restart the container after the "
                "host's driver was updated.",
                detail="RM has detected an NVML/RM version mismatch.",
            )
        ]

    def test_no_permission(self, with_nvml: Machine) -> None:
        assert with_nvml.read("no_permission") == [
            Unavailable(
                id="nvidia",
                engine="nvidia",
                state="present",
                cause="no_permission",
                reason="This user may not open NVIDIA's cards.",
                fix=JOIN_GROUPS.format("video,render"),
                detail="Insufficient Permissions",
            )
        ]

    def test_no_permission_for_one_card(self, with_nvml: Machine) -> None:
        assert with_nvml.read("no_permission_card") == [
            RTX_4090,
            Unavailable(
                id="nvidia:1",
                engine="nvidia",
                state="present",
                cause="no_permission",
                reason="This user may not open the card nvidia:1.",
                fix=JOIN_GROUPS.format("video,render"),
                detail="Insufficient Permissions",
            ),
        ]

    @pytest.mark.parametrize(("scenario", "pci"), [("lost_card", None), ("lost_card_with_address", "0000:65:00.0")])
    def test_lost_card(self, with_nvml: Machine, scenario: str, pci: str | None) -> None:
        assert with_nvml.read(scenario) == [
            RTX_4090,
            Unavailable(
                id="nvidia:1",
                engine="nvidia",
                state="present",
                cause="lost",
                reason="The machine has lost its connection to the card nvidia:1 (fallen off the bus).",
                fix=RESET,
                detail="GPU is lost",
                pci=pci,
            ),
        ]
        assert with_nvml.calls()[-1] == "nvmlShutdown"

    @pytest.mark.parametrize(
        ("scenario", "detail"), [("no_cards", None), ("no_supported_card", "No supported GPUs were found")]
    )
    def test_no_cards(self, with_nvml: Machine, scenario: str, detail: str | None) -> None:
        (found,) = with_nvml.read(scenario)
        assert isinstance(found, Unavailable)
        assert (found.id, found.state, found.cause, found.detail) == ("nvidia", "absent", "no_device", detail)
        assert found.reason == "NVIDIA's driver is running, but it finds no card."
        assert found.fix is not None
        assert found.fix.startswith("Check with `lspci | grep -i nvidia` that the machine sees the card;")

    def test_another_error(self, with_nvml: Machine) -> None:
        assert with_nvml.read("unknown_error") == [
            Unavailable(
                id="nvidia",
                engine="nvidia",
                state="present",
                cause="failed",
                reason="NVIDIA's own tools report error 999 for NVIDIA's cards.",
                fix=RESTART,
                detail="Unknown Error",
            )
        ]

    def test_hang_blocks_until_the_caller_ends_it(self, with_nvml: Machine) -> None:
        child = subprocess.Popen(with_nvml.command(), env=with_nvml.environment("hang"), stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begins\n"
            with pytest.raises(subprocess.TimeoutExpired):
                child.communicate(timeout=1)
            assert child.poll() is None
        finally:
            child.kill()
            child.communicate()
        assert with_nvml.calls() == ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"]


class TestWithoutNvml:
    def test_nothing_installed_is_not_a_problem(self, machine: Machine) -> None:
        assert machine.read() == []

    def test_nvidia_smi(self, machine: Machine, fake_nvidia_smi: Callable[..., Path]) -> None:
        machine.programs = fake_nvidia_smi(
            f"{ROW}, 8.9, 37\n"
            "1, Tesla T4, GPU-ffeeddcc-bbaa-9988-7766-554433221100, 00000000:65:00.0, 15360, 15101, 550.54.14, 7.5, 0\n"
        )
        smi: dict[str, Any] = {
            "source": "nvidia-smi",
            "driver_api": None,
            "model": None,
            "unknown": {"driver_api": NO_NVML},
        }
        assert machine.read() == [changed(RTX_4090, **smi), changed(T4, **smi)]

    def test_nvidia_smi_is_not_asked_where_nvml_answers(
        self, with_nvml: Machine, fake_nvidia_smi: Callable[..., Path]
    ) -> None:
        with_nvml.programs = fake_nvidia_smi("", 9)
        assert with_nvml.read("two_cards") == [RTX_4090, T4]

    def test_an_old_nvidia_smi_is_asked_for_less(self, machine: Machine, fake_nvidia_smi: Callable[..., Path]) -> None:
        machine.programs = fake_nvidia_smi(f"{ROW}, 37\n", unknown_column="compute_cap")
        assert machine.read() == [
            changed(
                RTX_4090,
                source="nvidia-smi",
                driver_api=None,
                model=None,
                compute_capability=None,
                unknown={
                    "driver_api": NO_NVML,
                    "compute_capability": "this nvidia-smi is too old to report it",
                },
            )
        ]

    @pytest.mark.parametrize(
        ("exit_code", "stdout", "state", "cause", "reason"),
        [
            (
                9,
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
                "latest NVIDIA driver is installed and running.\n\n",
                "absent",
                "no_driver",
                "NVIDIA's driver is not running, so NVIDIA's cards cannot be reached.",
            ),
            (
                12,
                "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n",
                "absent",
                "no_driver",
                "NVIDIA's driver is not fully installed: its program nvidia-smi is there, but not its library "
                "libnvidia-ml.",
            ),
            (
                6,
                "No devices were found\n",
                "absent",
                "no_device",
                "NVIDIA's driver is running, but it finds no card.",
            ),
            (
                18,
                "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n",
                "present",
                "driver_mismatch",
                "The kernel module of NVIDIA's driver that is loaded (version unknown) and the library that programs "
                "use (version unknown) differ in version, as after an update of the driver.",
            ),
            (
                4,
                "Failed to initialize NVML: Insufficient Permissions\n",
                "present",
                "no_permission",
                "This user may not open NVIDIA's cards.",
            ),
            (
                17,
                "Failed to initialize NVML: The operating system has blocked the request.\n",
                "present",
                "no_permission",
                "This user may not open NVIDIA's cards.",
            ),
            (
                255,
                "Failed to initialize NVML: Unknown Error\n",
                "present",
                "failed",
                "NVIDIA's own tools report error 255 for NVIDIA's cards.",
            ),
        ],
    )
    def test_nvidia_smi_fails(
        self,
        machine: Machine,
        fake_nvidia_smi: Callable[..., Path],
        exit_code: int,
        stdout: str,
        state: str,
        cause: str,
        reason: str,
    ) -> None:
        machine.programs = fake_nvidia_smi(stdout, exit_code)
        (found,) = machine.read()
        assert isinstance(found, Unavailable)
        assert (found.id, found.state, found.cause, found.reason) == ("nvidia", state, cause, reason)
        assert found.detail == stdout.strip().splitlines()[-1]
        assert found.fix

    def test_nvidia_smi_lists_nothing(self, machine: Machine, fake_nvidia_smi: Callable[..., Path]) -> None:
        machine.programs = fake_nvidia_smi("\n")
        (found,) = machine.read()
        assert isinstance(found, Unavailable)
        assert (found.cause, found.reason) == ("no_device", "NVIDIA's driver is running, but it finds no card.")

    def test_a_lost_card_costs_only_itself(self, machine: Machine, fake_nvidia_smi: Callable[..., Path]) -> None:
        complaint = "Unable to determine the device handle for GPU0000:65:00.0: GPU is lost. Reboot the system"
        machine.programs = fake_nvidia_smi(f"{ROW}, 8.9, 37\n{complaint}\n", 15)
        first, second = machine.read()
        assert first.id == "nvidia:0"
        assert second == Unavailable(
            id="nvidia",
            engine="nvidia",
            state="present",
            cause="lost",
            reason="The machine has lost its connection to the card at 0000:65:00.0 (fallen off the bus).",
            fix=RESET,
            detail=complaint,
            pci="0000:65:00.0",
        )

    def test_nvidia_smi_that_hangs(self, fake_nvidia_smi: Callable[..., Path], tmp_path: Path) -> None:
        program = fake_nvidia_smi(hangs=True) / "nvidia-smi"
        assert nvidia._read_smi(str(program), tmp_path, seconds=0.2) == [
            Unavailable(
                id="nvidia",
                engine="nvidia",
                state="hung",
                cause="hung",
                reason="nvidia-smi did not respond within 0.2 s.",
                fix="Restart the machine; if it happens again, check the card's power cable and its seat.",
            )
        ]

    def test_nvidia_smi_that_cannot_be_started(self, tmp_path: Path) -> None:
        (found,) = nvidia._read_smi(str(tmp_path / "gone"), tmp_path)
        assert isinstance(found, Unavailable)
        assert (found.cause, found.reason) == ("failed", "The program nvidia-smi cannot be started.")
        assert found.detail is not None
        assert "gone" in found.detail


class TestTable:
    def test_values_in_brackets_are_refusals(self) -> None:
        (card,) = nvidia._parse_smi("3, NVIDIA GB10, [Unknown Error], [N/A], [N/A], [Not Supported], , 12.1, N/A")
        assert card == Card(
            id="nvidia:3",
            vendor="NVIDIA",
            name="NVIDIA GB10",
            source="nvidia-smi",
            compute_capability="12.1",
            unknown={
                "uuid": "nvidia-smi answers '[Unknown Error]'",
                "pci": "nvidia-smi answers '[N/A]'",
                "memory_total": "nvidia-smi answers '[N/A]'",
                "memory_free": "nvidia-smi answers '[Not Supported]'",
                "driver": "nvidia-smi answers ''",
                "load": "nvidia-smi answers 'N/A'",
                "driver_api": NO_NVML,
            },
        )

    def test_a_card_without_a_name(self) -> None:
        refused = ", ".join(["[Unknown Error]"] * 5)
        (found,) = nvidia._parse_smi(f"1, [Unknown Error], [Unknown Error], 00000000:65:00.0, {refused}")
        assert found == Unavailable(
            id="nvidia:1",
            engine="nvidia",
            state="present",
            cause="failed",
            reason="nvidia-smi lists the card nvidia:1, but cannot read even its name.",
            fix=RESTART,
            detail="[Unknown Error]",
            pci="0000:65:00.0",
        )

    def test_a_line_that_is_no_row(self) -> None:
        card, found = nvidia._parse_smi(f"{ROW}, 8.9, 37\n\nWARNING: something {{else}}\n")
        assert card.id == "nvidia:0"
        assert found == Unavailable(
            id="nvidia",
            engine="nvidia",
            state="present",
            cause="garbage",
            reason="nvidia-smi printed something else than its table.",
            fix=RESTART,
            detail="WARNING: something {else}",
        )

    def test_no_rows(self) -> None:
        assert nvidia._parse_smi("\n") == []


@pytest.mark.skipif(sys.platform == "win32", reason="device nodes have groups on POSIX systems only")
class TestGroups:
    @pytest.fixture
    def group(self) -> str:
        """A group that the user of these tests may give a file to, other than root."""
        import grp

        return next(
            group.gr_name
            for group in grp.getgrall()
            if group.gr_gid != 0 and (os.geteuid() == 0 or group.gr_gid in os.getgroups())
        )

    def test_the_fix_names_the_group_of_a_closed_node(self, with_nvml: Machine, group: str) -> None:
        node = with_nvml.tell("dev/nvidia0", "")
        shutil.chown(node, group=group)
        node.chmod(0o660)
        (found,) = with_nvml.read("no_permission")
        assert isinstance(found, Unavailable)
        assert found.fix == JOIN_GROUPS.format(group)

    def test_open_nodes_and_folders_say_nothing(self, machine: Machine, group: str) -> None:
        machine.tell("dev/nvidia0", "").chmod(0o666)
        capability = machine.tell("dev/nvidia-caps/nvidia-cap1", "")
        for file in (machine.system / "dev/nvidia0", capability, capability.parent):
            shutil.chown(file, group=group)
        assert nvidia._groups(machine.system) == "video,render"

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root owns files of the group root"
    )
    def test_nobody_is_told_to_join_root(self, machine: Machine) -> None:
        machine.tell("dev/nvidia0", "").chmod(0o600)
        assert nvidia._groups(machine.system) == "video,render"
