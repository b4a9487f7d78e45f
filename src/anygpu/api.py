"""The functions that `import anygpu` offers.

What they need is imported when they are called, so that importing anygpu costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from anygpu.hardware.device import Device
from anygpu.hardware.selection import Power, prefer, require

if TYPE_CHECKING:
    from anygpu.hardware.diagnosis import Diagnosis
    from anygpu.placement.offload import Offloaded, Result
    from anygpu.placement.options import CallOptions, TaskOptions
    from anygpu.plan.plan import Plan
    from anygpu.progress import Progress
    from anygpu.receipts import Receipt
    from anygpu.runtime.future import Future
    from anygpu.runtime.mapping import Outcome
    from anygpu.streams.report import Streamed

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds that a probe may take in all; a device that is silent for 40 % of them counts as hung.
PROBE_SECONDS = 15.0


def devices(
    on: str | Sequence[str] | None = None,
    *,
    min_memory: int = 0,
    max_load: float = 1.0,
    power: Power | None = None,
    refresh: bool = False,
    timeout: float = PROBE_SECONDS,
) -> list[Device]:
    """The verified devices of this machine that fit, best first.

    Without arguments every verified device is listed; the CPU is always among them. When nothing fits,
    `DeviceUnavailable` says why, device by device. What an earlier call found is used again as long as no driver and
    no library has changed; `refresh=True` looks anew.
    """
    from anygpu.workers.discovery import look

    preference = prefer(on, min_memory=min_memory, max_load=max_load, power=power)
    inventory = look(refresh=refresh, timeout=timeout)
    return list(require(inventory.devices, preference, inventory.unavailable))


def doctor(*, deep: bool = False, timeout: float = PROBE_SECONDS) -> Diagnosis:
    """Why is my GPU not used? Probes everything anew and explains, with the command that fixes each problem."""
    from anygpu.workers.discovery import examine

    return examine(deep=deep, timeout=timeout)


@overload
def offload(function: Callable[P, R], /) -> Offloaded[P, R]: ...


@overload
def offload(**options: Unpack[CallOptions]) -> Callable[[Callable[P, R]], Offloaded[P, R]]: ...


def offload(function: Callable[P, R] | None = None, /, **options: Unpack[CallOptions]) -> Any:
    """Let a function run where it is fastest: `@offload`, or `@offload(on="gpu", fallback="raise")`.

    Calls take and return what they did before: NumPy arrays in, NumPy arrays out; `Array` in, `Array` out. Where a
    call ran and why is in `last_receipt()`; `function.run(...)` returns it with the value, and `function.explain(...)`
    tells beforehand.

    Options, which otherwise come from environment variables, or allow everything: `on=` (one name or several in order),
    `fallback="warn" | "raise" | "allow"`, `precision="float32"`, `min_memory=`, `max_load=`, `power="high" | "low"`,
    `isolation="thread" | "process"`, `timeout=`. With `engine="torch"` (or `"jax"`) the function takes and returns that
    library's own arrays and is never looked into: an opaque task.
    """
    from anygpu.placement.offload import decorated

    if function is None:
        return lambda later: decorated(later, options)
    return decorated(function, options)


def run(function: Callable[..., Any], /, *arguments: Any, **options: Unpack[CallOptions]) -> Result:
    """Call the function where it is fastest: `.value` and `.receipt`. Options are those of `offload`.

    Keywords of the function itself go into `functools.partial`.
    """
    from anygpu.placement.offload import remembered, unwrapped

    function, arguments, keywords = unwrapped(function, arguments)
    return remembered(function, options).run(*arguments, **keywords)


def submit(function: Callable[..., Any], /, *arguments: Any, **options: Unpack[TaskOptions]) -> Future:
    """Let the function run where it is fastest, some day soon: `future.result()`, or `await future`.

    Options are those of `offload`, and `priority=` (0 to 10), `deadline=` (seconds), `tenant=`, `nan="raise"` and, for
    opaque tasks, `idempotent=True`. Arguments must not be changed before the future is done. Raises `QueueFull` when a
    thousand tasks wait; a `Runtime` of your own has a queue, tenants and limits of its own.
    """
    from anygpu.runtime.runtime import default_runtime

    return default_runtime().submit(function, *arguments, **options)


def map(
    function: Callable[..., Any],
    /,
    *iterables: Iterable[Any],
    progress: Progress = False,
    **options: Unpack[TaskOptions],
) -> list[Outcome]:
    """The function for every item, as Python's own `map`: one outcome each, in order, with its value or its own error.

    Items of one shape become one launch where that pays. `progress=True` shows a bar; a function is told how many are
    done. Options are those of `submit`.
    """
    from anygpu.runtime.runtime import default_runtime

    return default_runtime().map(function, *iterables, progress=progress, **options)


def stream(
    function: Callable[..., Any],
    source: Any,
    sink: Any = None,
    *,
    axis: int = 0,
    memory: int | str | None = None,
    progress: Progress = False,
    resume: bool = False,
    per_chunk: bool = False,
    **options: Unpack[CallOptions],
) -> Streamed:
    """Call a function with arrays that are larger than memory: chunk by chunk, from a source to a sink.

    The function is one of the whole arrays. It is cut along `axis` only if its program proves that every stretch can
    be computed alone; otherwise `InvalidOption` says why, before anything is read. `per_chunk=True` promises that the
    function may be called with each chunk as if there were no others. While one chunk is computed the next is read and
    the one before is written, inside `memory` (bytes or "1GB").

    Sources: the path of a .npy file or of a zarr array, "file.safetensors:name", an array or memory map, a tuple of
    several of these with the same length along the axis, or an iterable of arrays, for each of which the function is
    called. Sinks: nothing (the results are `.value`), "out.npy", "out.safetensors:name", "out.zarr", an array or memory
    map, a function(chunk, start, stop), or a tuple of these, one for each array that the function returns.

    `progress=True` shows a bar; a function is told (done, total). With `resume=True` a .npy file that was being written
    when the process died is gone on with. Options are those of `offload`.
    """
    from anygpu.streams.streaming import stream as streamed

    return streamed(
        function,
        source,
        sink,
        axis=axis,
        memory=memory,
        progress=progress,
        resume=resume,
        per_chunk=per_chunk,
        given=options,
    )


def explain(function: Callable[..., Any], /, *arguments: Any, **options: Unpack[CallOptions]) -> Plan:
    """Where `run(function, *arguments)` would run, and why; every other device with its prediction or its refusal."""
    from anygpu.placement.offload import remembered, unwrapped

    function, arguments, keywords = unwrapped(function, arguments)
    return remembered(function, options).explain(*arguments, **keywords)


def last_receipt() -> Receipt | None:
    """What happened in the last call of an offloaded function, or of `run`, in this thread or asynchronous task."""
    from anygpu.placement import receipt_log

    return receipt_log.last_receipt()


def collect_receipts() -> AbstractContextManager[list[Receipt]]:
    """`with collect_receipts() as collected:` has the receipt of every call inside the block, in order."""
    from anygpu.placement import receipt_log

    return receipt_log.collect_receipts()


def freeze_support() -> None:
    """First line of a frozen application's main module, unless PyInstaller froze it: children of anygpu start there."""
    from anygpu.workers.command import serve_if_worker

    serve_if_worker()
