"""The processor and its memory: the facts that every device of kind `cpu` shares."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator

from anygpu.hardware.device import unknown_facts

NO_DRIVER = "a processor needs no driver"
NOT_A_CARD = "a processor has no address or identity of its own on the bus"
NOT_NVIDIA = "only NVIDIA cards have a compute capability"
LOAD_NOT_SAMPLED = "the processor's load is not sampled by a probe"


def processor_name(cpuinfo: str = "/proc/cpuinfo") -> str:
    """The processor's name as its maker gives it; `platform.processor()` is empty or just "x86_64" on Linux."""
    try:
        lines = _text(cpuinfo).splitlines()
    except OSError:
        return platform.processor() or platform.machine() or "CPU"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or "CPU"


def memory_total() -> int:
    return min(_host_memory()[0], _container_limit())


def memory_free() -> int:
    """Bytes that can be allocated without swapping, within the container's limit."""
    return min(_host_memory()[1], _container_limit())


def cores() -> int | None:
    """Without what one core pretends to be; `None` where the system does not say."""
    import psutil

    return psutil.cpu_count(logical=False)


def resident_bytes(*, children: bool = False) -> int:
    """The resident memory of this process and, on request, of its children, which takes some milliseconds."""
    import psutil

    me = psutil.Process()
    found: int = me.memory_info().rss
    for child in me.children(recursive=True) if children else ():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            found += child.memory_info().rss
    return found


def own_processes(program: str) -> Iterator[tuple[int, list[str]]]:
    """The processes of this user that run a program of that name, each with its arguments."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended meanwhile, or is closed to us
            # A program that runs with its owner's rights has arguments of whoever has started it; the real user tells.
            if set(process.uids()) == {os.geteuid()} and os.path.basename(process.exe()) == program:
                yield process.pid, process.cmdline()


def _host_memory(meminfo: str = "/proc/meminfo") -> tuple[int, int]:
    """In all, and available."""
    with contextlib.suppress(OSError, KeyError, ValueError, IndexError):  # elsewhere than on Linux
        lines = (line.partition(":") for line in _text(meminfo).splitlines())
        kilobytes = {name: int(value.split()[0]) for name, _, value in lines}
        return kilobytes["MemTotal"] * 1024, kilobytes["MemAvailable"] * 1024
    import psutil  # here, because it takes 15 ms to load, and most processes do without it

    memory = psutil.virtual_memory()
    return memory.total, memory.available


def _container_limit(cgroup: str = "/sys/fs/cgroup/memory.max") -> int:
    """Returns the memory limit of this process's container in bytes; far more than any machine has without one."""
    unlimited = 1 << 62
    try:
        text = _text(cgroup).strip()
    except OSError:
        return unlimited
    return int(text) if text.isdigit() else unlimited


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()


def processor_unknowns() -> dict[str, str]:
    """Why the facts that only cards have are `None` on a device that is the processor."""
    return {
        **unknown_facts(NOT_A_CARD, "uuid", "pci"),
        "compute_capability": NOT_NVIDIA,
        "load": LOAD_NOT_SAMPLED,
    }
