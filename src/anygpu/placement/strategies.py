"""The strategies for running a program (whole on one device, in chunks, split across two), and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.device import to_numpy_dtype
from anygpu.array.core.expression import compute
from anygpu.placement.executing import enter, leave
from anygpu.program.graph import Program
from anygpu.receipts.receipt import NetworkUse, Phases
from anygpu.workers.worker import Argument, Ran, Worker

if TYPE_CHECKING:
    from anygpu.placement.plan.chunking import Chunks
    from anygpu.placement.plan.splitting import ProgramPart, Split


class SingleDevice(NamedTuple):
    """The whole program on one device."""

    device: str

    @property
    def name(self) -> str:
        """The name of the candidate: its device."""
        return self.device

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices that are used."""
        return (self.device,)

    @property
    def how(self) -> str | None:
        """How it runs, for receipts; `None` as it runs as a whole."""
        return None


class Chunked(NamedTuple):
    """The program in chunks along its independent axis, one after the other, so that each fits into the device's
    memory.
    """

    device: str
    chunks: Chunks

    @property
    def name(self) -> str:
        """The name of the candidate: its device."""
        return self.device

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices that are used."""
        return (self.device,)

    @property
    def how(self) -> str | None:
        """The number and length of chunks, for receipts."""
        axes = [axis for axis in self.chunks.cut.outputs if axis is not None]
        axis = f" along axis {axes[0]} of the result" if axes else ""
        return f"in {self.chunks.count} chunks of at most {self.chunks.piece}{axis}"


class SplitAcrossDevices(NamedTuple):
    """Some operations on one device and some on another."""

    devices: tuple[str, str]
    split: Split

    @property
    def name(self) -> str:
        """The name of the candidate: all of its devices."""
        return "+".join(self.devices)

    @property
    def how(self) -> str | None:
        """The parts and where each runs, for receipts."""
        order = ", then ".join(
            f"{len(part.program) - part.program.input_count} operations on {self.devices[part.device]}"
            for part in self.split.parts
        )
        return f"in {len(self.split.parts)} parts: {order}"


Strategy = SingleDevice | Chunked | SplitAcrossDevices

#: Opens, or finds open, the worker of a device.
FindWorker = Callable[[str], Worker]


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
    way: Strategy,
    program: Program,
    arguments: Sequence[Argument],
    find: FindWorker,
    *,
    keep: bool = False,
    timeout: float | None = None,
    between: Callable[[], None] | None = None,
    starting: Callable[[], None] | None = None,
) -> Ran:
    """Run a program by a strategy, on the workers that `find` gives; the results, phases and counts of all runs
    together.

    `between` is called before each chunk but the first, and ends the run by raising. So does `starting`, which is
    called when the run begins: as soon as its device is free for it, if it runs there as a whole. With `keep` results
    stay on the device, if it is one. `timeout` is in seconds, for each run of a worker.
    """
    if starting is not None and not isinstance(way, SingleDevice):
        starting()
    # A worker of this process may call a kernel's reference.
    token = enter(True)
    try:
        match way:
            case SingleDevice(device=device):
                worker = find(device)
                if starting is None:
                    return worker.run(program, arguments, keep=keep, timeout=timeout)
                return worker.run(program, arguments, keep=keep, timeout=timeout, starting=starting)
            case Chunked(device=device, chunks=chunks):
                return _in_chunks(find(device), chunks, program, arguments, timeout, between)
            case SplitAcrossDevices(devices=devices, split=split):
                return _split([find(device) for device in devices], split, arguments, timeout)
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
    return merge_runs(runs, list(results), [ran.phases for ran in runs])


def _split(workers: Sequence[Worker], split: Split, arguments: Sequence[Argument], timeout: float | None) -> Ran:
    """Run the parts of a program on their devices, some at the same time, and add up what they took."""
    #: By their position in the whole program.
    values: dict[int, Any] = dict(enumerate(arguments))
    runs: list[Ran] = []
    #: Of parts that run at the same time only the longer one is waited for.
    waited_for: list[Phases] = []

    def run(part: ProgramPart) -> Ran:
        return workers[part.device].run(part.program, [values[source] for source in part.sources], timeout=timeout)

    waiting = list(split.parts)
    while waiting:
        first, *waiting = waiting
        # The next part runs at the same time if it is on the other device and does not need this one.
        beside: ProgramPart | None = None
        if waiting and waiting[0].device != first.device and not set(waiting[0].sources) & set(first.results):
            beside = waiting.pop(0)
        if beside is None:
            done = [(first, run(first))]
        else:
            from concurrent.futures import ThreadPoolExecutor  # late: it loads 5 ms, and few calls are split

            with ThreadPoolExecutor(1, thread_name_prefix="anygpu-part") as other:
                later = other.submit(run, beside)
                done = [(first, run(first)), (beside, later.result())]
        for part, ran in done:
            values.update(zip(part.results, ran.results, strict=True))
            runs.append(ran)
        waited_for.append(max((ran.phases for _, ran in done), key=lambda phases: phases.total))
    return merge_runs(runs, [values[output] for output in split.outputs], waited_for)


def _slice(axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """The index of a piece along one axis."""
    return (*(slice(None),) * axis, slice(start, stop))


def merge_runs(runs: Sequence[Ran], results: list[Any], waited_for: Sequence[Phases]) -> Ran:
    """Several runs as one with these results: counts are added, peaks are the largest, phases are those waited for.

    A figure that one of the runs does not have is `None`, with the reason in `unknown`.
    """
    phases = Phases(
        compile=sum(each.compile for each in waited_for),
        queue=sum(each.queue for each in waited_for),
        write=sum(each.write for each in waited_for),
        run=sum(each.run for each in waited_for),
        read=sum(each.read for each in waited_for),
        other=sum(each.other for each in waited_for),
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
