"""The processor, and what is software on it: by the counters of the system and of single processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from anygpu.base.processors import usable_processors
from anygpu.hardware import host
from anygpu.hardware.sysfs import folders, read_number, read_text
from anygpu.hardware.usage.usage import NO_SECOND_LOOK, ProcessUsage, Readings, Usage, share

#: Sensors of processors, by the names of their drivers: Intel, AMD, and most of the others.
_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class Counters(NamedTuple):
    """Counters of processor time at one moment."""

    seconds: float
    #: Seconds of all processors, and those in which they had something to do; `None` where the system does not tell.
    whole: float | None
    busy: float | None
    #: Seconds of the processors by process, of those that were asked for and are still there.
    processes: dict[int, float]


def read_counters(processes: Iterable[int] = (), *, root: Path = Path("/"), clock: float | None = None) -> Counters:
    whole = busy = None
    words = (read_text(root / "proc/stat").value or "").partition("\n")[0].split()
    if len(words) >= 6 and words[0] == "cpu" and all(word.isdecimal() for word in words[1:]):
        # What guests have had is in the time of the users already.
        times = [int(word) for word in words[1:9]]
        whole, busy = float(sum(times)), float(sum(times) - times[3] - times[4])
    taken = {}
    for pid in processes:
        seconds = _processor_seconds(root / "proc" / str(pid) / "stat")
        if seconds is not None:
            taken[pid] = seconds
    return Counters(time.monotonic() if clock is None else clock, whole, busy, taken)


def read_processor(before: Counters | None, after: Counters, *, root: Path = Path("/")) -> Usage:
    """The processor of this machine."""
    found = Readings()
    total = host.memory_total()
    found.add("memory_total", total)
    found.add("memory_used", max(0, total - host.memory_free()))
    if after.whole is None or after.busy is None:
        found.lack("the system does not tell it", "load")
    elif before is None or before.whole is None or before.busy is None:
        found.lack(NO_SECOND_LOOK, "load")
    else:
        found.add("load", share(after.busy - before.busy, after.whole - before.whole), "two looks were too close")
    found.add("temperature", _temperature(root), "no driver of a sensor is loaded")
    found.lack("only root may read the processor's counter of energy", "power", "power_limit")
    _add_clocks(found, root)
    found.lack("Linux does not tell whether the processor is throttled", "throttled")
    found.lack("every process uses the processor; `top` lists them", "processes")
    return found.usage("cpu", "proc", "the system does not tell it")


def read_software(
    device: str, workers: Iterable[int], before: Counters | None, after: Counters, *, root: Path = Path("/")
) -> Usage:
    """A device that is software: what its worker processes take of the processors."""
    found, processes, load = Readings(), [], 0.0
    resident = 0
    for pid in workers:
        taken, then = after.processes.get(pid), None if before is None else before.processes.get(pid)
        if taken is None:
            continue  # it has ended
        part = None
        if then is not None and before is not None:
            part = share((taken - then) / usable_processors(), after.seconds - before.seconds)
        unknown = {} if part is not None else {"load": NO_SECOND_LOOK}
        memory = _resident(root / "proc" / str(pid) / "statm")
        name = read_text(root / "proc" / str(pid) / "comm").value
        if memory is None:
            unknown["memory"] = "it has ended meanwhile"
        if name is None:
            unknown["name"] = "it has ended meanwhile"
        load += part or 0.0
        resident += memory or 0
        processes.append(ProcessUsage(pid=pid, name=name, memory=memory, load=part, unknown=unknown))
    if not processes:
        found.lack("it is software, and no worker process has it open", "load", "memory_used", "processes")
    else:
        found.add("processes", tuple(processes))
        found.add("memory_used", resident)
        known = all(each.load is not None for each in processes)
        found.add("load", min(1.0, load) if known else None, NO_SECOND_LOOK)
    found.add("memory_total", host.memory_total())
    reason = "it is software on the processor"
    found.lack(reason, "temperature", "power", "power_limit", "clock", "clock_limit", "throttled")
    return found.usage(device, "worker", reason)


def process_name(pid: int, root: Path = Path("/")) -> str | None:
    return read_text(root / "proc" / str(pid) / "comm").value


def _processor_seconds(file: Path) -> float | None:
    # A name may have blanks and brackets in it: what follows the last bracket is numbers.
    words = (read_text(file).value or "").rpartition(")")[2].split()
    try:
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (IndexError, ValueError):
        return None


def _resident(file: Path) -> int | None:
    with contextlib.suppress(IndexError, ValueError):
        return int((read_text(file).value or "").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _temperature(root: Path) -> float | None:
    for sensor in folders(root / "sys/class/hwmon", "hwmon[0-9]*"):
        if read_text(sensor / "name").value in _SENSORS:
            degrees = read_number(sensor / "temp1_input").value
            if degrees is not None:
                return degrees / 1e3
    return None


def _add_clocks(found: Readings, root: Path) -> None:
    places = folders(root / "sys/devices/system/cpu", "cpu[0-9]*/cpufreq")
    reason = "the system does not tell the processor's clock"
    for name, file in (("clock", "scaling_cur_freq"), ("clock_limit", "cpuinfo_max_freq")):
        known = [value for place in places if (value := read_number(place / file).value) is not None]
        found.add(name, max(known) * 1e3 if known else None, reason)
