"""anygpu runs ordinary NumPy-style functions on whatever GPU the machine has, or on none, and says why.

This is the one place where public names are exported; everything else in the package is private. Importing it opens no
device and loads none of the optional libraries.

The package is read in the order the data flows. Today that is: `hardware` (what there is, as frozen facts), `engines`
(the libraries that compute), `workers` (the processes that touch devices), `api`, and `cli` on top.
"""

from anygpu._version import __version__
from anygpu.api import devices, doctor
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    DeadlineExceeded,
    DeviceError,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    InvalidOption,
    InvalidProgram,
    MissingExtra,
    OutOfMemory,
    OverBudget,
    TooBig,
    Unsupported,
)
from anygpu.hardware.cards import Card
from anygpu.hardware.case import Finding
from anygpu.hardware.device import Device, Unavailable
from anygpu.hardware.diagnosis import Diagnosis
from anygpu.receipts import Attempt, HostOperation, Phases, Receipt

__all__ = [
    "AllocationError",
    "AnyGPUError",
    "Attempt",
    "Card",
    "DeadlineExceeded",
    "Device",
    "DeviceError",
    "DeviceHung",
    "DeviceLost",
    "DevicePoisoned",
    "DeviceUnavailable",
    "Diagnosis",
    "Finding",
    "HostOperation",
    "InvalidOption",
    "InvalidProgram",
    "MissingExtra",
    "OutOfMemory",
    "OverBudget",
    "Phases",
    "Receipt",
    "TooBig",
    "Unavailable",
    "Unsupported",
    "__version__",
    "devices",
    "doctor",
]
