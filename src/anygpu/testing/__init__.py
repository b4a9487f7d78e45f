"""The fakes and checks that anygpu's own tests use, for yours.

`FakeEngine` and `FakeMemory` have faults that a test can set, `ManualClock` only moves when told to, `FakeProcessors`
are as busy as a test says, and the functions that begin with `check_` are the conformance suites: run them on an
engine, a worker or a memory resource of your own. `anygpu verify`, in `testing/verify`, is the only part of the package
that imports this.
"""

from anygpu.testing.conformance import check_engine_probe, check_engine_programs, check_worker
from anygpu.testing.fakes import FakeEngine, FakeProcessors, Fault, ManualClock, fake_device
from anygpu.testing.resources import FakeMemory, check_no_leaks, check_resource

__all__ = [
    "FakeEngine",
    "FakeMemory",
    "FakeProcessors",
    "Fault",
    "ManualClock",
    "check_engine_probe",
    "check_engine_programs",
    "check_no_leaks",
    "check_resource",
    "check_worker",
    "fake_device",
]
