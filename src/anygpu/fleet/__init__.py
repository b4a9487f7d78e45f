"""Fleets: the same calls on the machines of a Ray cluster, with the same receipts.

`connect` returns a `Fleet`, which is a `Runtime`. Ray is an optional library (`pip install ray grpcio`); it is
loaded in a child process, the driver, and never in the user's own.
"""

from anygpu.fleet.fleet import Fleet, connect
from anygpu.fleet.scaling import Scaling

__all__ = ["Fleet", "Scaling", "connect"]
