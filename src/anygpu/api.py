"""The functions that `import anygpu` offers.

What they need is imported when they are called, so that importing anygpu costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anygpu.hardware.device import Device
from anygpu.hardware.selection import Power, prefer, require

if TYPE_CHECKING:
    from anygpu.hardware.diagnosis import Diagnosis

#: Seconds that a probe may take in all; a device that is silent for 40 % of them counts as hung.
PROBE_SECONDS = 15.0


def devices(
    on: str | Sequence[str] | None = None,
    *,
    min_memory: int = 0,
    max_load: float = 1.0,
    power: Power | None = None,
    refresh: bool = False,
    timeout: float = PROBE_SECONDS,
) -> list[Device]:
    """The verified devices of this machine that fit, best first.

    Without arguments every verified device is listed; the CPU is always among them. When nothing fits,
    `DeviceUnavailable` says why, device by device. What an earlier call found is used again as long as no driver and
    no library has changed; `refresh=True` looks anew.
    """
    from anygpu.workers.look import look

    preference = prefer(on, min_memory=min_memory, max_load=max_load, power=power)
    inventory = look(refresh=refresh, timeout=timeout)
    return list(require(inventory.devices, preference, inventory.unavailable))


def doctor(*, deep: bool = False, timeout: float = PROBE_SECONDS) -> Diagnosis:
    """Why is my GPU not used? Probes everything anew and explains, with the command that fixes each problem."""
    from anygpu.workers.look import examine

    return examine(deep=deep, timeout=timeout)
