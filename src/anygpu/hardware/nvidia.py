"""NVIDIA's cards, as NVIDIA's own tools see them: NVML, or `nvidia-smi` where that library is missing.

One fact that a card refuses costs that fact, not the card; one card that fails costs that card, not the others. NVML
may block for ever on a broken card, so `read` belongs in a child process with a deadline.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from anygpu.hardware.device import Card, Cause, State, Unavailable, normal_pci, normal_uuid, unknown_facts


class NvmlCode(IntEnum):
    """NVML's errors as nvml.h numbers them; `nvidia-smi` ends with the same numbers."""

    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    GPU_NOT_FOUND = 28


def nvml_library() -> Any:
    """NVIDIA's bindings of NVML, which have no types. They load the library itself when it is first used."""
    import pynvml

    return pynvml


def read(*, system: Path = Path("/")) -> list[Card | Unavailable]:
    """Every NVIDIA card in index order; `[]` where nothing of NVIDIA is installed. /proc and /dev are in `system`."""
    pynvml = nvml_library()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        # Only here: later calls raise the same error for libcuda, which says nothing about NVML.
        program = shutil.which("nvidia-smi")
        return [] if program is None else _read_smi(program, system)
    except pynvml.NVMLError as error:
        return [_by_code(error.value, str(error), system, library=_library_version(pynvml))]
    try:
        return _read_nvml(pynvml, system)
    finally:
        # What has been read is worth more than a complaint on the way out.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class _Problem(NamedTuple):
    """A kind of trouble; `reason` and `fix` have gaps for the facts of the case."""

    state: State
    cause: Cause
    reason: str
    fix: str


_UNKNOWN = "version unknown"
_NO_DEVICE = _Problem(
    "absent",
    "no_device",
    "NVIDIA's driver is running, but it finds no card.",
    "Check with `lspci | grep -i nvidia` that the machine sees the card; if it does not, check its seat and its power. "
    "Start a container with `--gpus all`; give a virtual machine the card by PCI passthrough.",
)
_NO_PERMISSION = _Problem(
    "present",
    "no_permission",
    "This user may not open {what}.",
    "See with `ls -l /dev/nvidia*` which group may open the cards, join it with `sudo usermod -aG {groups} $USER`, and "
    "log in again. Start a container with `--gpus all`.",
)
_OTHER = _Problem(
    "present",
    "failed",
    "NVIDIA's own tools report error {code} for {what}.",
    "Run `nvidia-smi` in a terminal to see what it says, then restart the machine; in a container, restart the "
    "container first.",
)
_HUNG = _Problem(
    "hung",
    "hung",
    "nvidia-smi did not respond within {seconds:g} s.",
    "Restart the machine; if it happens again, check the card's power cable and its seat.",
)
_PROBLEMS: Mapping[int, _Problem] = {
    NvmlCode.DRIVER_NOT_LOADED: _Problem(
        "absent",
        "no_driver",
        "NVIDIA's driver is not running, so {what} cannot be reached.",
        "Install NVIDIA's driver, or start it with `sudo modprobe nvidia`; if that fails, restart the machine. For a "
        "container, do so on the host.",
    ),
    NvmlCode.LIBRARY_NOT_FOUND: _Problem(
        "absent",
        "no_driver",
        "NVIDIA's driver is not fully installed: its program nvidia-smi is there, but not its library libnvidia-ml.",
        "Install NVIDIA's driver again, then run `sudo ldconfig`.",
    ),
    NvmlCode.LIB_RM_VERSION_MISMATCH: _Problem(
        "present",
        "driver_mismatch",
        "The kernel module of NVIDIA's driver that is loaded ({kernel}) and the library that programs use ({library}) "
        "differ in version, as after an update of the driver.",
        "Restart the machine, or reload the modules with `sudo modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia "
        "&& sudo modprobe nvidia`. In a container: restart the container after the host's driver was updated.",
    ),
    NvmlCode.GPU_IS_LOST: _Problem(
        "present",
        "lost",
        "The machine has lost its connection to {what} (fallen off the bus).",
        "Check the card's power cable and its seat, then reset it with `sudo nvidia-smi -r` or restart the machine.",
    ),
    NvmlCode.FUNCTION_NOT_FOUND: _Problem(
        "present",
        "driver_too_old",
        "NVIDIA's driver is too old to report {what}: its library lacks a function that is needed for it.",
        "Install a newer driver with the system's package manager or from https://www.nvidia.com/drivers, then restart "
        "the machine.",
    ),
    NvmlCode.NO_PERMISSION: _NO_PERMISSION,
    # What a container gets whose device cgroup does not list the card.
    NvmlCode.OPERATING_SYSTEM: _NO_PERMISSION,
    NvmlCode.NOT_FOUND: _NO_DEVICE,
    NvmlCode.GPU_NOT_FOUND: _NO_DEVICE,
}


def _unavailable(
    problem: _Problem, words: str, *, index: int | None = None, pci: str | None = None, **facts: object
) -> Unavailable:
    """The entry for a card, or all of NVIDIA's, that cannot be used for this problem."""
    whole = "NVIDIA's cards" if pci is None else f"the card at {pci}"
    facts["what"] = whole if index is None else f"the card nvidia:{index}"
    return Unavailable(
        id="nvidia" if index is None else f"nvidia:{index}",
        engine="nvidia",
        state=problem.state,
        cause=problem.cause,
        reason=problem.reason.format_map(facts),
        fix=problem.fix.format_map(facts),
        detail=words or None,
        pci=pci,
    )


def _by_code(
    code: int, words: str, system: Path, *, index: int | None = None, pci: str | None = None, library: str = _UNKNOWN
) -> Unavailable:
    """Returns the entry for an error of NVML or nvidia-smi, with the facts that its message needs."""
    facts = {"code": code, "groups": _groups(system), "kernel": _kernel_version(system), "library": library}
    return _unavailable(_PROBLEMS.get(code, _OTHER), words, index=index, pci=pci, **facts)


def _kernel_version(system: Path) -> str:
    """Returns the version of the kernel's part of the driver, from sysfs or procfs."""
    for name in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
        with contextlib.suppress(OSError):
            # The second file has it within a sentence.
            if found := re.search(r"\d+(\.\d+)+", (system / name).read_text(errors="replace")):
                return found.group()
    return _UNKNOWN


def _library_version(nvml: Any) -> str:
    """NVML tells its own version even if it cannot be initialised: CUDA's major version, then the driver's."""
    try:
        return str(nvml.nvmlSystemGetNVMLVersion()).partition(".")[2]
    except nvml.NVMLError:
        return _UNKNOWN


def _groups(system: Path) -> str:
    """The groups that may open the device nodes, where not everyone may; the usual ones if that cannot be seen."""
    groups = set()
    for node in (system / "dev").glob("nvidia*"):
        # A node may go away meanwhile, and a group need not have a name.
        with contextlib.suppress(OSError, KeyError):
            if not node.is_dir() and node.stat().st_mode & 0o006 != 0o006:
                groups.add(node.group())
    # Membership in `root` would open far more than a card.
    return ",".join(sorted(groups - {"root"})) or "video,render"


#: For each function of the bindings: the facts in its answer, and how to read them.
_Getters = Mapping[str, Mapping[str, Callable[[Any], object]]]

_DRIVER_FACTS: _Getters = {
    "nvmlSystemGetDriverVersion": {"driver": str},
    "nvmlSystemGetCudaDriverVersion_v2": {"driver_api": lambda number: f"{number // 1000}.{number % 1000 // 10}"},
}
_CARD_FACTS: _Getters = {
    "nvmlDeviceGetPciInfo_v3": {
        "pci": lambda answer: normal_pci(answer.busId),
        "model": lambda answer: f"{answer.pciDeviceId & 0xFFFF:04x}:{answer.pciDeviceId >> 16:04x}",
    },
    "nvmlDeviceGetUUID": {"uuid": normal_uuid},
    "nvmlDeviceGetMemoryInfo": {"memory_total": lambda answer: answer.total, "memory_free": lambda answer: answer.free},
    "nvmlDeviceGetCudaComputeCapability": {"compute_capability": lambda answer: "{}.{}".format(*answer)},
    "nvmlDeviceGetUtilizationRates": {"load": lambda answer: answer.gpu / 100},
}
REFUSALS: Mapping[int, str] = {
    NvmlCode.NOT_SUPPORTED: "the card or its driver does not report it",
    NvmlCode.NO_PERMISSION: "this user may not read it",
    NvmlCode.FUNCTION_NOT_FOUND: "the driver is too old to report it",
    NvmlCode.LIBRARY_NOT_FOUND: "the driver's library that knows it (libcuda) cannot be loaded",
}


class _Facts:
    """The known facts, and the reasons why the others are unknown."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.unknown: dict[str, str] = {}

    def add(self, name: str, value: object, otherwise: str) -> None:
        """Adds a fact, or the reason why it is unknown."""
        if value is None:
            self.unknown[name] = otherwise
        else:
            self.known[name] = value

    def ask(self, nvml: Any, getters: _Getters, *handle: object) -> _Facts:
        """Asks NVML one function after the other; a refusal is a reason. Raises only if the card is lost."""
        for function, readings in getters.items():
            try:
                answer = getattr(nvml, function)(*handle)
            except nvml.NVMLError as error:
                if error.value == NvmlCode.GPU_IS_LOST:
                    raise
                reason = REFUSALS.get(error.value, f"NVML reports error {error.value} ({error})")
                self.unknown |= unknown_facts(reason, *readings)
                continue
            for name, reading in readings.items():
                self.add(name, reading(answer), f"the driver's answer cannot be read: {answer}")
        return self


def _read_nvml(nvml: Any, system: Path) -> list[Card | Unavailable]:
    """Returns every card that NVML lists, or the reason why it lists none."""
    try:
        driver = _Facts().ask(nvml, _DRIVER_FACTS)
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        return [_by_code(error.value, str(error), system)]
    return [_read_card(nvml, index, driver, system) for index in range(count)] or [_unavailable(_NO_DEVICE, "")]


def _read_card(nvml: Any, index: int, driver: _Facts, system: Path) -> Card | Unavailable:
    """Returns one card with all its facts, or the reason why it cannot be used."""
    facts = _Facts()
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        facts.ask(nvml, _CARD_FACTS, handle)
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        # The address was asked for first, since a lost card may still give it.
        return _by_code(error.value, str(error), system, index=index, pci=facts.known.get("pci"))
    known, unknown = driver.known | facts.known, driver.unknown | facts.unknown
    return Card(id=f"nvidia:{index}", vendor="NVIDIA", name=name, source="nvml", unknown=unknown, **known)


#: The columns that nvidia-smi is asked for, and the facts in them.
_COLUMNS: Mapping[str, str] = {
    "index": "id",
    "name": "name",
    "uuid": "uuid",
    "pci.bus_id": "pci",
    "memory.total": "memory_total",
    "memory.free": "memory_free",
    "driver_version": "driver",
    "compute_cap": "compute_capability",
    "utilization.gpu": "load",
}
#: Older drivers, such as 470, do not know `compute_cap` and then refuse the whole table.
_OLD_COLUMNS = {column: name for column, name in _COLUMNS.items() if column != "compute_cap"}


def _read_smi(program: str, system: Path, seconds: float = 5.0) -> list[Card | Unavailable]:
    """The cards that `nvidia-smi` lists, also an old one; or why it lists none."""
    try:
        for columns in (_COLUMNS, _OLD_COLUMNS):
            answer = _run_smi(program, columns, seconds)
            if answer.returncode != NvmlCode.INVALID_ARGUMENT:
                break
    except subprocess.TimeoutExpired:
        return [_unavailable(_HUNG, "", seconds=seconds)]
    except OSError as error:
        return [_unavailable(_OTHER._replace(reason="The program nvidia-smi cannot be started."), str(error))]
    found = _parse_smi(answer.stdout, columns)
    if answer.returncode == 0:
        return found or [_unavailable(_NO_DEVICE, "")]
    # The cards that answered still count; a line that is not a row is part of the complaint.
    words = f"{answer.stdout}\n{answer.stderr}".strip().rpartition("\n")[2]
    address = re.search(r"[0-9a-fA-F]{4,8}(:[0-9a-fA-F]{2}){2}\.[0-7]\b", words)
    pci = normal_pci(address.group()) if address else None
    problem = _by_code(answer.returncode, words, system, pci=pci)
    return [*(card for card in found if isinstance(card, Card)), problem]


def _run_smi(program: str, columns: Mapping[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    command = [program, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, check=False, text=True, errors="replace", timeout=seconds)


def _parse_smi(text: str, columns: Mapping[str, str] = _COLUMNS) -> list[Card | Unavailable]:
    """Returns the cards of nvidia-smi's table; a line that is none of it becomes an entry with the line."""
    found: list[Card | Unavailable] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(columns) and values[0].isdecimal():
            found.append(_card_of_row(int(values[0]), dict(zip(columns, values, strict=True))))
        else:
            garbage = _OTHER._replace(cause="garbage", reason="nvidia-smi printed something else than its table.")
            found.append(_unavailable(garbage, line))
    return found


def _card_of_row(index: int, row: Mapping[str, str]) -> Card | Unavailable:
    """Returns the card of one line; facts that an old nvidia-smi does not have are unknown."""
    facts = _Facts()
    for column, name in _COLUMNS.items():
        if column in row:
            facts.add(name, _value_in(column, row[column]), f"nvidia-smi answers {row[column]!r}")
        else:
            facts.unknown[name] = "this nvidia-smi is too old to report it"
    if "name" in facts.unknown:
        nameless = _OTHER._replace(reason="nvidia-smi lists {what}, but cannot read even its name.")
        return _unavailable(nameless, row["name"], index=index, pci=facts.known.get("pci"))
    facts.unknown["driver_api"] = "nvidia-smi does not list it, and NVML, which would tell, is missing"
    return Card(vendor="NVIDIA", source="nvidia-smi", unknown=facts.unknown, **facts.known)


def _value_in(column: str, text: str) -> object:
    """A value in brackets, such as `[N/A]` or `[Unknown Error]`, is a refusal."""
    if not text or text.startswith("[") or text == "N/A":
        return None
    match column:
        case "index":
            return f"nvidia:{text}"
        case "uuid":
            return normal_uuid(text)
        case "pci.bus_id":
            return normal_pci(text)
        case "memory.total" | "memory.free":
            return int(text) << 20 if text.isdecimal() else None
        case "utilization.gpu":
            return int(text) / 100 if text.isdecimal() else None
    return text
