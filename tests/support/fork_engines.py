"""Engines that a spare cannot copy: one that has a thread when it is loaded, and one that does not work in a copy."""

from __future__ import annotations

import os
import threading
from typing import Any

from anygpu.engines.catalogue import EngineEntry
from anygpu.hardware.device import Device, Unavailable
from anygpu.testing import FakeEngine

THREADED = EngineEntry(name="threaded", target="tests.support.fork_engines:threaded")
UNFORKABLE = EngineEntry(name="unforkable", target="tests.support.fork_engines:unforkable")


def threaded() -> FakeEngine:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return FakeEngine("threaded")


def unforkable() -> FakeEngine:
    return _Unforkable("unforkable")


class _Unforkable(FakeEngine):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._process = os.getpid()

    def discover(self) -> list[Device | Unavailable]:
        if os.getpid() != self._process:
            raise RuntimeError("its library does not work after a fork")
        return super().discover()
