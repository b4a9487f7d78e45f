"""The fakes and checks that anygpu's own tests use, for yours.

`FakeEngine` has scriptable devices and faults, `ManualClock` only moves when told to, and `check_engine_probe` and
`check_engine_programs` are the conformance suites: run them on an engine of your own. Nothing in the package imports
this.
"""

from anygpu.testing.clock import ManualClock
from anygpu.testing.conformance import check_engine_probe, check_engine_programs
from anygpu.testing.fake_engine import FakeEngine, Fault, fake_device

__all__ = ["FakeEngine", "Fault", "ManualClock", "check_engine_probe", "check_engine_programs", "fake_device"]
