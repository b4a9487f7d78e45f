"""What can be measured of a workload, whoever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anygpu.base.typing import HostArray
from benchmarks.handwritten.workloads import Workload


class Prepared(Protocol):
    """One workload, ready to run: everything that can be made beforehand is made."""

    def resident(self) -> float:
        """A call with everything on the device: seconds until the result is there."""

    def device_seconds(self) -> tuple[float, float]:
        """By the device's clock, and by the host's around it."""

    def round_trip(self) -> HostArray:
        """From NumPy to NumPy."""


class Side(Protocol):
    @property
    def name(self) -> str:
        """The device's."""

    @property
    def is_software(self) -> bool:
        """Whether the device is the processor that runs this, in this process."""

    def prepared(self, workload: Workload, arguments: Sequence[HostArray], result: HostArray) -> Prepared:
        """`result` is what NumPy makes of the arguments."""
