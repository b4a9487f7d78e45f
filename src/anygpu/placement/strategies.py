"""Running a program on the worker of a device: as a whole, or in chunks that fit into its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.expression import compute
from anygpu.calls.executing import enter, leave
from anygpu.program.graph import Program
from anygpu.receipts.receipt import NetworkUse, Phases
from anygpu.workers.worker import Argument, Ran, Worker

if TYPE_CHECKING:
    from anygpu.placement.plan.chunking import Chunks


def as_arguments(values: Sequence[Any], program: Program, resident: str | None) -> list[Argument]:
    """The arguments for a worker: arrays on the device `resident` stay there, others are passed as NumPy's."""
    given: list[Argument] = []
    # The first specs are those of the inputs.
    for value, spec in zip(values, program.specs, strict=False):
        if isinstance(value, Array):
            if value.device == resident and value.dtype.name == spec.dtype:
                compute([value._value], value._device)
                from anygpu.workers.device_arrays.lineage import TrackedBuffer  # with devices, which it is part of

                buffer: Any = value._value.buffer
                given.append(buffer.ensure_resident() if isinstance(buffer, TrackedBuffer) else buffer)
                continue
            value = np.asarray(value)
        given.append(np.asarray(value, spec.dtype))
    return given


def execute(
    program: Program,
    arguments: Sequence[Argument],
    worker: Worker,
    *,
    chunks: Chunks | None = None,
    keep: bool = False,
    timeout: float | None = None,
    between: Callable[[], None] | None = None,
    starting: Callable[[], None] | None = None,
) -> Ran:
    """Run a program, in `chunks` if given; return the results, phases and counts of all runs together.

    `between` is called before each chunk but the first, and ends the run by raising. So does `starting`, which is
    called when the run begins: as soon as its device is free for it, if it runs there as a whole. With `keep` results
    stay on the device, if it is one. `timeout` is in seconds, for each run of a worker.
    """
    if starting is not None and chunks is not None:
        starting()
    # A worker of this process may call a kernel's reference.
    token = enter(True)
    try:
        if chunks is not None:
            return _in_chunks(worker, chunks, program, arguments, timeout, between)
        if starting is None:
            return worker.run(program, arguments, keep=keep, timeout=timeout)
        return worker.run(program, arguments, keep=keep, timeout=timeout, starting=starting)
    finally:
        leave(token)


def _in_chunks(
    worker: Worker,
    chunks: Chunks,
    program: Program,
    arguments: Sequence[Argument],
    timeout: float | None,
    between: Callable[[], None] | None,
) -> Ran:
    """Run a program chunk by chunk, and write the results into whole arrays; `between` is called between chunks."""
    from anygpu.program.independence import cut  # few programs are cut

    whole = [each if isinstance(each, np.ndarray) else worker.download(each) for each in arguments]
    results = [np.empty(spec.shape, to_numpy_dtype(spec.dtype)) for spec in program.results]
    runs: list[Ran] = []
    length = chunks.cut.length
    for start in range(0, length, chunks.piece):
        if start and between is not None:
            between()
        stop = min(start + chunks.piece, length)
        piece = cut(program, chunks.cut, start, stop)
        given = [
            each if axis is None else each[_slice(axis, start, stop)]
            for each, axis in zip(whole, chunks.cut.inputs, strict=True)
        ]
        ran = worker.run(piece, given, timeout=timeout)
        for result, part, axis in zip(results, ran.results, chunks.cut.outputs, strict=True):
            result[... if axis is None else _slice(axis, start, stop)] = part
        runs.append(ran)
    return merge_runs(runs, list(results))


def _slice(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """The index of a piece along one axis."""
    return (*(slice(None),) * axis, slice(start, stop))


def merge_runs(runs: Sequence[Ran], results: list[Any]) -> Ran:
    """Return several runs as one with these results: counts and phases are added, peaks are the largest.

    A figure that one of the runs does not have is `None`, with the reason in `unknown`.
    """
    phases = Phases(
        compile=sum(ran.phases.compile for ran in runs),
        queue=sum(ran.phases.queue for ran in runs),
        write=sum(ran.phases.write for ran in runs),
        run=sum(ran.phases.run for ran in runs),
        read=sum(ran.phases.read for ran in runs),
        other=sum(ran.phases.other for ran in runs),
    )
    unknown: dict[str, str] = {}
    for ran in runs:
        unknown.update(ran.unknown)

    def total(name: str) -> Any:
        values = [getattr(ran, name) for ran in runs]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            unknown.setdefault(name, "one of the devices does not report it")
            return None
        unknown.pop(name, None)
        return max(known) if name == "peak_bytes" else sum(known)

    return Ran(
        results=results,
        phases=phases,
        bytes_to_device=sum(ran.bytes_to_device for ran in runs),
        bytes_to_host=sum(ran.bytes_to_host for ran in runs),
        bytes_skipped=sum(ran.bytes_skipped for ran in runs),
        device_seconds=total("device_seconds"),
        peak_bytes=total("peak_bytes"),
        kernels=total("kernels"),
        driver=None,
        host_operations=tuple(each for ran in runs for each in ran.host_operations),
        unknown=unknown,
        network=_network(runs),
    )


def _network(runs: Sequence[Ran]) -> NetworkUse | None:
    """The network use of several runs together; `None` if none used it."""
    used = [ran.network for ran in runs if ran.network is not None]
    if not used:
        return None
    return NetworkUse(
        sum(each.bytes_sent for each in used),
        sum(each.bytes_received for each in used),
        sum(each.asks for each in used),
    )
