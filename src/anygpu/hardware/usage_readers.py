"""What reads the card of a device, for `Device.usage`. It needs devices itself, so `anygpu.api` puts it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anygpu.hardware.device import Device
    from anygpu.hardware.usage.usage import Usage

usage_readers: list[Callable[[Device, float], Usage]] = []
