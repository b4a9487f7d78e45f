"""The functions that `import anygpu` offers.

Each imports what it needs when it is called, so that importing anygpu costs next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from anygpu.base import events
from anygpu.base.events import Listed

if TYPE_CHECKING:
    from anygpu.array.core.device import ArrayDevice
    from anygpu.calls.offload import Offloaded, Result
    from anygpu.calls.options import CallOptions, TaskOptions
    from anygpu.hardware.device import Device
    from anygpu.hardware.diagnosis import Diagnosis
    from anygpu.hardware.preference import Power
    from anygpu.hardware.usage import Usage
    from anygpu.observe.statistics import Summary
    from anygpu.placement.plan.plan import Plan
    from anygpu.receipts.receipt import Receipt
    from anygpu.runtime.future import Future, Progress
    from anygpu.runtime.runtime import Outcome
    from anygpu.runtime.serving.application import ServingRuntime
    from anygpu.runtime.serving.limits import TokenMapping
    from anygpu.runtime.streams.pipeline import Streamed

P = ParamSpec("P")
R = TypeVar("R")


def _usage_of(device: Device, seconds: float) -> Usage:
    from anygpu.hardware.usage.reading import read_twice

    return read_twice([device], seconds).usage[device.id]


def _array_device(name: str | None) -> ArrayDevice:
    from anygpu.workers.device_arrays.registry import registry

    return registry.find(name)


events.usage_of, events.array_device = _usage_of, _array_device

#: Time limit of a probe, in seconds; a device that is silent for 40 % of it counts as hung.
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
    """The verified devices of this machine that match, best first.

    Without arguments every verified device is listed; the CPU is always among them. When none matches,
    `DeviceUnavailable` says why, device by device. Results are cached until a driver or a library changes;
    `refresh=True` probes again.
    """
    from anygpu.hardware.preference import prefer
    from anygpu.hardware.selection import require
    from anygpu.workers.discovery import discover

    preference = prefer(on, min_memory=min_memory, max_load=max_load, power=power)
    inventory = discover(refresh=refresh, timeout=timeout)
    return Listed(require(inventory.devices, preference, inventory.unavailable))


def doctor(*, deep: bool = False, timeout: float = PROBE_SECONDS) -> Diagnosis:
    """Explain why a GPU is not used: probe everything again, and name the command that fixes each problem."""
    from anygpu.workers.discovery import diagnose_machine

    return diagnose_machine(deep=deep, timeout=timeout)


@overload
def offload(function: Callable[P, R], /) -> Offloaded[P, R]: ...


@overload
def offload(**options: Unpack[CallOptions]) -> Callable[[Callable[P, R]], Offloaded[P, R]]: ...


def offload(function: Callable[P, R] | None = None, /, **options: Unpack[CallOptions]) -> Any:
    """Run a function wherever it is fastest: `@offload`, or `@offload(on="gpu", fallback="raise")`.

    Calls take and return what they did before: NumPy arrays in, NumPy arrays out; `Array` in, `Array` out.
    `last_receipt()` says where the last call ran and why; `function.run(...)` returns the receipt with the value, and
    `function.explain(...)` predicts it.

    Options default to environment variables: `on=` (one name, or several in order of preference),
    `fallback="warn" | "raise" | "allow"`, `precision="float32"`, `min_memory=`, `max_load=`, `power="high" | "low"`,
    `isolation="thread" | "process"`, `timeout=`. With `engine="torch"` (or `"jax"`) the function takes and returns that
    library's own arrays and is never traced: an opaque task.
    """
    from anygpu.calls.offload import decorated

    if function is None:
        return lambda later: decorated(later, options)
    return decorated(function, options)


def run(function: Callable[..., Any], /, *arguments: Any, **options: Unpack[CallOptions]) -> Result:
    """Call a function wherever it is fastest, and return `.value` and `.receipt`. Options are those of `offload`.

    To pass keyword arguments to the function itself, use `functools.partial`.
    """
    from anygpu.calls.undecorated import remembered, unwrapped

    function, arguments, keywords = unwrapped(function, arguments)
    return remembered(function, options).run(*arguments, **keywords)


def submit(function: Callable[..., Any], /, *arguments: Any, **options: Unpack[TaskOptions]) -> Future:
    """Queue a call of the function, to run wherever it is fastest: `future.result()`, or `await future`.

    Options are those of `offload`, and `priority=` (0 to 10), `deadline=` (seconds), `tenant=`, `nan="raise"` and, for
    opaque tasks, `idempotent=True`. Do not change the arguments before the future is done. Raises `QueueFull` when a
    thousand tasks are waiting; a `Runtime` of your own has its own queue, tenants and limits.
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
    """Call the function for every item, like Python's `map`: one outcome each, in order, with its value or its error.

    Items of one shape share a launch where that is faster. `progress=True` shows a bar; a callback gets (done, total).
    Options are those of `submit`.
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
    """Call a function on arrays that are larger than memory: chunk by chunk, from a source to a sink.

    The function is written for the whole arrays. They are split along `axis` only if the function's program proves that
    each chunk can be computed alone; otherwise `InvalidOption` says why, before anything is read. `per_chunk=True`
    declares that the function may be called on each chunk separately. While one chunk is computed, the next is read and
    the previous one is written, within `memory` (bytes or "1GB").

    Sources: the path of a .npy file or of a zarr array, "file.safetensors:name", an array or memory map, a tuple of
    several of these with the same length along the axis, or an iterable of arrays (the function is called for each).
    Sinks: nothing (the results are in `.value`), "out.npy", "out.safetensors:name", "out.zarr", an array or memory
    map, a function(chunk, start, stop), or a tuple of these, one for each array that the function returns.

    `progress=True` shows a bar; a callback gets (done, total). `resume=True` continues a partially written .npy file.
    Options are those of `offload`.
    """
    from anygpu.runtime.streams.streaming import stream as streamed

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
    """Where `run(function, *arguments)` would run and why, with the prediction or refusal of every other device."""
    from anygpu.calls.undecorated import remembered, unwrapped

    function, arguments, keywords = unwrapped(function, arguments)
    return remembered(function, options).explain(*arguments, **keywords)


def serve(
    models: Mapping[str, Any],
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    runtime: ServingRuntime | None = None,
    tokens: TokenMapping | str | os.PathLike[str] | None = None,
    latency: float | None = None,
    queue: int | None = None,
    deadline: float | None = None,
    examples: Mapping[str, Sequence[Any]] | None = None,
    max_body: int | str = "64MB",
    notice: float = 1.0,
    patience: float = 30.0,
    insecure: bool = False,
) -> None:
    """Serve functions over HTTP until SIGTERM or Ctrl-C, by the Open Inference Protocol that KServe and Triton speak.

    `models` has a function, a `Program`, or the path of a saved program under each name. Requests that wait together
    become one launch where that pays, of at most `latency` seconds (0.05). At most `queue` requests wait (1000); each
    may take `deadline` seconds (60) and `max_body` bytes. `tokens` maps bearer tokens to tenants, or is a file with
    lines "tenant token". `examples` has a tuple of arguments for models by name, with which they are called before the
    server is ready. With `runtime` that one is used, and stays open. On SIGTERM the server is not ready any more, takes
    no connections after `notice` seconds, and finishes open requests within `patience` seconds.

    A `Server` takes the same arguments, and serves in a thread: `with Server({"score": score}, port=0) as server:`.
    Needs the extra `serve`.
    """
    from anygpu.runtime.serving.server import Server

    Server(
        models,
        port=port,
        host=host,
        runtime=runtime,
        tokens=tokens,
        latency=latency,
        queue=queue,
        deadline=deadline,
        examples=examples,
        max_body=max_body,
        notice=notice,
        patience=patience,
        insecure=insecure,
    ).run()


def statistics() -> Summary:
    """What calls have taken since `anygpu.observe.start()`, by function and device: counts, bytes, phases, quantiles.

    Times are within 1 %, everything else is exact. `print` shows a table.
    """
    from anygpu import observe

    return observe.summary()


def last_receipt() -> Receipt | None:
    """The receipt of the last call of an offloaded function, or of `run`, in this thread or asyncio task."""
    from anygpu.receipts import notes

    return notes.last_receipt()


def collect_receipts() -> AbstractContextManager[list[Receipt]]:
    """`with collect_receipts() as collected:` collects the receipt of every call inside the block, in order."""
    from anygpu.receipts import notes

    return notes.collect_receipts()


def freeze_support() -> None:
    """Call this first in a frozen application's main module (not needed with PyInstaller): children start there."""
    from anygpu.workers.child_start import serve_if_worker

    serve_if_worker()
