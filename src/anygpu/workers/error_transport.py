"""Errors that cross processes: by the name of their class, their message and their plain fields. Nothing is pickled."""

from __future__ import annotations

import traceback

import numpy as np

from anygpu import errors
from anygpu.errors import AnyGPUError, DeviceError, text_of
from anygpu.workers.task_messages import TaskFailed

#: What programs raise on purpose, because NumPy does: it is the user's to catch, and arrives as it was raised.
_AS_RAISED: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError,
        FloatingPointError,
        IndexError,
        MemoryError,
        NotImplementedError,
        OverflowError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        np.linalg.LinAlgError,
    )
}


def written(error: Exception) -> TaskFailed:
    """The error as it is sent."""
    fields = {name: value for name, value in vars(error).items() if _is_plain(value)}
    ours = isinstance(error, AnyGPUError)
    trace = "" if ours else "".join(traceback.format_exception(error))
    return TaskFailed(type(error).__name__ if ours else _name_of(error), text_of(error), fields if ours else {}, trace)


def _name_of(error: Exception) -> str:
    """NumPy has children of these errors that are its own affair; what users catch is the parent."""
    kinds = type(error).__mro__
    return next((kind.__name__ for kind in kinds if _AS_RAISED.get(kind.__name__) is kind), kinds[0].__name__)


def read(failed: TaskFailed, device: str) -> Exception:
    """The error as it is raised. What is neither ours nor one of Python's usual ones becomes a `DeviceError`."""
    kind = getattr(errors, failed.error, None)
    if isinstance(kind, type) and issubclass(kind, AnyGPUError):
        error: AnyGPUError = kind.__new__(kind, failed.message)
        Exception.__init__(error, failed.message)
        # Sequences arrive as lists, and the fields of errors are tuples.
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in failed.fields.items()}
        error.__dict__.update(fields)
        return error
    as_raised = _AS_RAISED.get(failed.error)
    if as_raised is not None:
        return as_raised(failed.message)
    unexpected = DeviceError(
        f"the process that serves {device} raised {failed.error}: {failed.message}. Report it with the output of "
        "`anygpu doctor --json`.",
        device=device,
    )
    unexpected.add_note(failed.trace)
    return unexpected


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(isinstance(each, str | int | float | None) for each in value)
    return isinstance(value, str | int | float | None)
