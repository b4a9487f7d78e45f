"""The one way to the device's queue.

The library ends the whole process when a submission is not valid: after the device was lost, or with a buffer that was
destroyed or is mapped. So every submission passes through here; nothing is ever destroyed while it could be submitted
(it is let go, and the library frees it after its last use); and encoding is finished right before the submission, which
fails softly when the device is lost. A device that is lost between these two calls still takes the process with it:
nothing in the process can prevent that, and it is why workers are processes.
"""

from __future__ import annotations

from typing import Any

from anygpu.engines.driver import Counters
from anygpu.engines.webgpu.replay import NativeCalls, Replay


class Gate:
    """Submits, and counts what it submits."""

    def __init__(self, device: Any, counters: Counters) -> None:
        self._device = device
        self._counters = counters
        #: Bytes that were written to the queue and that no submission has taken along yet.
        self.written = 0

    def send(self, encoder: Any) -> None:
        finished = encoder.finish()
        self._device.queue.submit([finished])
        self._counters.submits += 1
        self.written = 0

    def replay(self, replay: Replay, native: NativeCalls) -> None:
        """`send` of a submission that was sent before."""
        native.submit(replay)
        self._counters.submits += 1
        self.written = 0

    def flush(self) -> None:
        """Start with what was written. The library also gives back the memory that it used for it."""
        if self.written:
            self.send(self._device.create_command_encoder())
