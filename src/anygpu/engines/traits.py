"""What anygpu knows of an engine before its library is loaded: facts, so that nothing above the engines asks for names.

The traits of the built-in engines stand in `anygpu.engines.catalogue`. Another package names an `EngineTraits` of its
own in the entry point group `anygpu.engine_traits`, in a module that does not import the library: it is imported by the
process of the user.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from anygpu.engines import Isolation
from anygpu.hardware.device import DeviceForm
from anygpu.program.ops.custom import Language

#: Which views of an array share its memory.
#: strided     any slice, also with negative steps
#: forward     any slice with positive steps
#: contiguous  a run of elements that lie one after the other
#: none        every view is a copy
Views = Literal["strided", "forward", "contiguous", "none"]


class AssumedRates(msgspec.Struct, frozen=True, kw_only=True):
    """What a device is taken to do until it has been measured. Times are in seconds, rates in units a second."""

    #: Seconds of one run, of one kernel in it, of one transfer, of the first use of a program and of the device.
    launch: float
    kernel: float
    latency: float
    compile: float
    open: float
    #: Bytes that are transferred, and bytes that elementwise operations and gathers read and write.
    bytes_per_second: float
    memory: float
    indexing: float
    #: Operations.
    functions: float
    products: float
    transforms: float
    sorting: float
    solving: float
    #: How many times as long 64 bits take as 32.
    wide: float


#: A GPU interface that runs on the CPU, in a process of its own.
SOFTWARE = AssumedRates(
    launch=5e-4, kernel=5e-5, latency=1e-4, bytes_per_second=3e9, memory=6e9, functions=5e8, products=1e10,
    transforms=1e9, sorting=1e8, indexing=1e9, solving=1e9, wide=2.5, compile=0.05, open=0.5,
)  # fmt: skip
INTEGRATED = AssumedRates(
    launch=4e-4, kernel=2e-5, latency=1e-4, bytes_per_second=6e9, memory=3e10, functions=3e10, products=3e11,
    transforms=1e10, sorting=5e9, indexing=1e10, solving=1e10, wide=8.0, compile=0.05, open=0.5,
)  # fmt: skip
DISCRETE = AssumedRates(
    launch=4e-4, kernel=1e-5, latency=1e-4, bytes_per_second=6e9, memory=3e11, functions=5e11, products=3e12,
    transforms=1e11, sorting=5e10, indexing=1e11, solving=1e11, wide=32.0, compile=0.05, open=0.5,
)  # fmt: skip

_BY_FORM: dict[DeviceForm, AssumedRates] = {
    "host": SOFTWARE,
    "software": SOFTWARE,
    "integrated": INTEGRATED,
    "discrete": DISCRETE,
    "virtual": DISCRETE,
}


class EngineTraits(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an engine and all of its devices. The defaults suit an engine of which nothing is known."""

    #: Where its workers live unless the user says otherwise. A library that cannot bring down a process, and whose
    #: arrays users want to have in theirs, may be in a thread.
    isolation: Isolation = "process"
    #: The languages of users' kernels that it compiles.
    languages: tuple[Language, ...] = ()
    views: Views = "none"
    #: Whether it tries out sizes of kernels at the first use of a program, within the budget of the user.
    tunes: bool = False
    #: Whether it makes one kernel of several operations.
    fuses: bool = True
    #: Whether calls may go to it that name no device. Otherwise it is used where it is named.
    automatic: bool = True
    #: By form of the device, where it differs from what anygpu assumes of any engine.
    rates: dict[DeviceForm, AssumedRates] = {}

    def rates_of(self, form: DeviceForm) -> AssumedRates:
        return self.rates.get(form, _BY_FORM[form])
