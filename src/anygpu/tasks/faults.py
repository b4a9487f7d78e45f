"""Which kind of failure an error is, by its type, so that the state machine of tasks can decide what comes next."""

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
    """Everything that anygpu can do nothing about is the user's.

    With the device and the generation of the worker that the task ran on, the loss of that worker (`lost`) is told from
    that of another one, where only an argument was (`missing`).
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
