"""Maps an error to the kind of failure that the state machine of tasks decides by."""

from __future__ import annotations

from anygpu.errors import (
    DeadlineExceeded,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    MissingExtra,
    NotRecordable,
    OutOfMemory,
    OverBudget,
    TooBig,
    Unsupported,
)
from anygpu.tasks.machine import Fault

_FAULTS: dict[type[BaseException], Fault] = {
    TooBig: "too big",
    OutOfMemory: "no memory",
    OverBudget: "over budget",
    DeviceLost: "lost",
    DevicePoisoned: "poisoned",
    DeviceHung: "hung",
    Unsupported: "unsupported",
    NotRecordable: "unsupported",
    DeviceUnavailable: "unavailable",
    MissingExtra: "unavailable",
    DeadlineExceeded: "late",
}


def fault_of(error: BaseException, *, device: str | None = None, generation: int | None = None) -> Fault:
    """The fault that an error stands for; errors that anygpu cannot handle are the user's.

    The device and the generation of the worker that ran the task distinguish the loss of that worker (`lost`) from the
    loss of another one that held an argument (`missing`).
    """
    for kind in type(error).__mro__:
        fault = _FAULTS.get(kind)
        if fault is not None:
            break
    else:
        return "user"
    if isinstance(error, DeviceLost):
        elsewhere = device is not None and error.device != device
        earlier = None not in (generation, error.generation) and error.generation != generation
        return "missing" if elsewhere or earlier else "lost"
    return fault
