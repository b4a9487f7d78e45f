"""A device whose arrays survive the death of its worker.

Every array is a `TrackedBuffer` with its lineage: a copy on the host, or the program that made it. What a new worker
lacks is uploaded or computed again when it is used. Where no worker can be opened any more, NumPy goes on. Arrays are
evicted in the same way when the device has no room for them.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import numpy as np

from anygpu.array.core.expression import users_line
from anygpu.base.forks import lock, rlock
from anygpu.base.typing import HostArray
from anygpu.engines.numpy import lowering
from anygpu.errors import (
    AllocationError,
    AnyGPUError,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    OutOfMemory,
    OverBudget,
    text_of,
)
from anygpu.hardware.device import Device
from anygpu.program.graph import Program
from anygpu.receipts.receipt import HostOperation, ran_on_host
from anygpu.workers.device_arrays.handle import DeviceHandle, is_shared, run_and_keep
from anygpu.workers.device_arrays.lineage import (
    DEPTH,
    NODES,
    Evicted,
    HostCopy,
    HostCopyCache,
    HostRestoration,
    Lineage,
    Loss,
    LostArray,
    Restoration,
    TrackedBuffer,
    describe_loss,
    has_copy,
    missing_ancestors,
    recount,
    result_lineages,
    topological_order,
)
from anygpu.workers.executor import spec_of
from anygpu.workers.task_lifecycle import Fail, Failed, Reclaim, Started, Task, fault_of, step
from anygpu.workers.worker import Argument, Handle, Lending, Worker, line_of

Result = TypeVar("Result")

#: The depth from which a copy is kept when the values come to the host anyway.
_DEEP = DEPTH // 2
#: An array that cannot be copied just now loses its history at this multiple of the limits.
_PATIENCE = 2
#: The history of one array may keep 1/_SHARE of the budget for copies alive.
_SHARE = 4
#: Host arguments beyond _LARGE bytes, and _FAR_MORE times the size of the results, are not copied: the results are.
_LARGE = 64 << 10
_FAR_MORE = 2
#: From this size on, the memory in which values cross to the worker is kept as their copy.
_WORTH_LENDING = 256 << 10
#: Programs that are interned, so that equal programs of many lineages are one object.
_PROGRAMS = 256
#: Dead references to arrays that may accumulate before they are removed.
_MANY = 1024

_ticks = itertools.count(1)


class RecoverableDevice(DeviceHandle):
    """A device whose worker is a process that may die: its arrays are `TrackedBuffer`, and survive the worker.

    They are restored when they are used. A program that was running when the worker died is run again.
    """

    def __init__(self, facts: Device, find_worker: Callable[[], Worker], copies: HostCopyCache) -> None:
        """Makes the device with no array. `copies` is the cache of host copies that all devices of the process share.

        Arrays are held weakly, by the moment of their last use, which is the order of eviction.
        """
        super().__init__(facts, find_worker)
        self._copies = copies
        #: Every array, by a number of its own; dead ones are removed now and then. Needs no lock: adding one, removing
        #: one and listing them are atomic.
        self._arrays: dict[int, ref[TrackedBuffer]] = {}
        self._prune_at = _MANY
        #: The lineages of handles that callers use directly. `_lending` guards additions.
        self._lent: WeakKeyDictionary[Handle, Lineage] = WeakKeyDictionary()
        self._programs: dict[str, Program] = {}
        #: Held while arrays are restored or evicted.
        self._moving = rlock()
        self._lending = lock()

    # -- the device as arrays use it

    def upload(self, values: HostArray) -> TrackedBuffer:
        """Copies values to the device, with a host copy within the budget from which they are restored after a loss."""
        handle, lent = self._with_retries((), lambda worker, _: _uploaded(worker, values))
        lineage = Lineage(handle.spec, line=users_line())
        lineage.remember(self._copies.keep(values) if lent is None else self._copies.keep(lent, owned=True))
        return self._tracked([handle], [lineage])[0]

    def upload_with_copy(self, values: HostArray, copy: HostCopy | str) -> TrackedBuffer:
        """Upload values whose copy belongs to the caller; a string is the reason why there is no copy."""
        handle = self._with_retries((), lambda worker, _: worker.upload(values))
        lineage = Lineage(handle.spec, line=users_line())
        lineage.remember(copy)
        return self._tracked([handle], [lineage])[0]

    def keep_copy(self, buffer: TrackedBuffer, values: HostArray) -> None:
        """Use values that are never written to as the array's copy, within the budget."""
        buffer.lineage.remember(self._copies.keep(values, owned=True))

    def adopt(self, array: Any) -> TrackedBuffer:
        return self.upload(np.from_dlpack(array))

    def download(self, buffer: TrackedBuffer) -> HostArray:
        """Returns the values of an array: of its copy if it is on no device, else from the device, restored if need be.

        Where the device cannot be opened any more, NumPy computes them. Values without a copy, or with a long history,
        are kept as one.
        """
        lineage = buffer.lineage
        worker = self._worker
        if buffer.handle is None or worker is None or not worker.alive:
            copy = lineage.copy
            values = copy.values if copy is not None else None
            if values is not None:
                return values.view()
        try:
            values = self._with_retries((buffer,), lambda worker, handles: worker.download(handles[0]))
        except DeviceUnavailable:
            return self._restored_on_host(buffer)
        if lineage.copy is None and (lineage.producer is None or lineage.depth >= _DEEP):
            lineage.remember(self._copies.keep(values))
        return values

    def native(self, buffer: TrackedBuffer) -> Any:
        return self._with_retries((buffer,), lambda worker, handles: worker.native(handles[0]))

    def run(self, program: Program, buffers: Sequence[TrackedBuffer | HostArray]) -> list[TrackedBuffer]:
        """Runs a program on buffers, which are restored first if need be, and returns the results with their lineage.

        Where the device cannot be opened any more, NumPy runs it.
        """
        try:
            results = self._with_retries(buffers, lambda worker, handles: run_and_keep(worker, program, handles))
        except DeviceUnavailable as gone:
            return self._run_on_host(program, buffers, gone.with_traceback(None))
        return self.track(program, buffers, results)

    def handle_for(self, buffer: TrackedBuffer) -> Handle:
        """The handle of the buffer, for a caller that uses the worker directly."""
        handle: Handle = self._with_retries((buffer,), lambda _, handles: handles[0])
        with self._lending:
            self._lent[handle] = buffer.lineage
        return handle

    # -- where results come from

    def track(
        self, program: Program, given: Sequence[TrackedBuffer | Argument], results: Sequence[Handle]
    ) -> list[TrackedBuffer]:
        """The results of a program that was run on `given`, with their lineage."""
        sources: list[Lineage] = []
        for each in given:
            if type(each) is not TrackedBuffer:
                return self._track_mixed(program, given, results)
            sources.append(each.lineage)
        return self._track_results(program, sources, given, results)

    def _track_results(
        self,
        program: Program,
        sources: list[Lineage],
        given: Sequence[TrackedBuffer | Argument],
        results: Sequence[Handle],
    ) -> list[TrackedBuffer]:
        """Makes the results' buffers. A history that became too long or too large is cut at the program's inputs.

        Equal programs are kept once, unless they come from other lines of the user.
        """
        known = self._programs.get(program.key)
        if known is None:
            if len(self._programs) >= _PROGRAMS:
                self._programs.clear()
            known = self._programs[program.key] = program
        if known.lines != program.lines:
            known = program
        lineages = result_lineages(known, sources)
        first = lineages[0]
        if first.depth > DEPTH or first.nodes > NODES or first.held > self._copies.budget // _SHARE:
            self._shorten(program, sources, given)
            lineages = result_lineages(known, sources)
        return self._tracked(results, lineages)

    def _track_mixed(
        self, program: Program, given: Sequence[TrackedBuffer | Argument], results: Sequence[Handle]
    ) -> list[TrackedBuffer]:
        """Results of a program that a caller ran on handles and host arrays.

        The host arrays are copied for the lineage; if they are large, and far larger than the results, the results are
        copied instead.
        """
        on_host = sum(each.nbytes for each in given if isinstance(each, np.ndarray))
        if on_host > _LARGE and on_host > _FAR_MORE * sum(handle.spec.nbytes for handle in results):
            copied = self._copied(results)
            if copied is not None:
                return copied
        sources = [each.lineage if isinstance(each, TrackedBuffer) else self._lineage_of(each) for each in given]
        return self._track_results(program, sources, given, results)

    def _tracked(self, handles: Sequence[Handle], lineages: Sequence[Lineage]) -> list[TrackedBuffer]:
        """Registers handles with their lineages as arrays of this device."""
        found: list[TrackedBuffer] = []
        for handle, lineage in zip(handles, lineages, strict=True):
            now = next(_ticks)
            buffer = TrackedBuffer(handle, lineage, self, handle.generation, now)
            self._arrays[now] = lineage.array = ref(buffer)
            found.append(buffer)
        if len(self._arrays) > self._prune_at:
            self._prune()
        return found

    def _prune(self) -> None:
        """Forgets arrays that are gone, when so many have come that half of the table may be."""
        for number, each in list(self._arrays.items()):
            if each() is None:
                self._arrays.pop(number, None)
        self._prune_at = 2 * len(self._arrays) + _MANY

    @property
    def has_arrays(self) -> bool:
        """Whether any array of this device still exists."""
        return any(each() is not None for each in list(self._arrays.values()))

    def _live_buffers(self) -> list[TrackedBuffer]:
        """All arrays of this device that still exist."""
        arrays = [each() for each in list(self._arrays.values())]
        return [buffer for buffer in arrays if buffer is not None]

    def _lineage_of(self, given: Argument) -> Lineage:
        """Returns the lineage of an argument that is no tracked buffer.

        Host values are copied, a lent handle has its own.
        """
        if isinstance(given, np.ndarray):
            lineage = Lineage(spec_of(given))
            lineage.remember(self._copies.keep(given))
            return lineage
        known = self._lent.get(given)
        if known is None:
            known = Lineage(given.spec)
            known.why = "its origin is unknown"
        return known

    def _copied(self, results: Sequence[Handle]) -> list[TrackedBuffer] | None:
        """The results with copies of their own; `None` if they cannot be downloaded now."""
        lineages = []
        for handle in results:
            values = self._downloaded(handle)
            if values is None:
                return None
            lineage = Lineage(handle.spec)
            lineage.remember(self._copies.keep(values))
            lineages.append(lineage)
        return self._tracked(results, lineages)

    def _downloaded(self, handle: Handle) -> HostArray | None:
        """Reads a handle of the present worker; `None` if that is another one by now, or cannot."""
        worker = self._worker
        if worker is None or worker.generation != handle.generation:
            return None
        try:
            return worker.download(handle)
        except Exception as error:  # noqa: BLE001 - the user meets an error of the program when they use the result
            _drop_traceback(error)
            return None

    def _is_long(self, lineage: Lineage, times: int = 1) -> bool:
        return lineage.depth > times * DEPTH or lineage.nodes > times * NODES

    def _shorten(self, program: Program, sources: Sequence[Lineage], given: Sequence[TrackedBuffer | Argument]) -> None:
        """Cut a long history at the inputs of the program, with copies of those inputs.

        The same applies to a history that keeps many copies of dead arrays alive: of a loop over batches, only its
        state is copied.
        """
        with self._moving:
            for source in sources:
                recount(source)
            for source, each in sorted(zip(sources, given, strict=True), key=lambda pair: -pair[0].depth):
                result = result_lineages(program, sources)[0]
                holds_much = result.held > self._copies.budget // _SHARE and source.spec.nbytes < source.held
                if source.producer is not None and (holds_much or self._is_long(result)):
                    self._cut(
                        source, each.handle if isinstance(each, TrackedBuffer) else each, must=self._is_long(result)
                    )

    def _cut(self, source: Lineage, on_device: Any, *, must: bool) -> None:
        """Cut it with a copy; without one only if it `must` be cut and no copy could be made for long."""
        if source.copy is None:
            values = self._downloaded(on_device) if on_device is not None else None
            if values is not None:
                source.remember(self._copies.keep(values))
            elif self._is_long(source, _PATIENCE):
                source.why = "its history became too long, and it could not be copied to the host"
            else:
                return
        if source.copy is not None or must:
            source.cut()

    # -- using the worker

    def _with_retries(self, buffers: Sequence[Any], use: Callable[[Worker, list[Any]], Result]) -> Result:
        """Call `use` with the worker and the handles of the buffers.

        After a failure the state machine of tasks decides: a worker that has died is replaced, and arrays are evicted
        when memory runs out. A success costs none of this.
        """
        task: Task | None = None
        while True:
            worker = self.worker
            try:
                handles = self._resident(worker, buffers)
                if handles is None:
                    continue
                return use(worker, handles)
            except (DeviceLost, DevicePoisoned, OutOfMemory, OverBudget) as error:
                failure = error
                _drop_traceback(error)
            handles = None
            task = task or Task(name="an operation on arrays", devices=(self.device,))
            task = self._after_failure(task, failure, worker.generation)

    def _after_failure(self, task: Task, failure: AnyGPUError, generation: int) -> Task:
        """The task, ready for its next attempt. Raises the failure if there is none."""
        fault = fault_of(failure, device=self.device, generation=generation)
        if fault == "missing":
            # An array cannot be restored: the attempt has just tried to.
            raise failure
        if fault == "over budget":
            # Both mean that the device is full, and eviction is the answer to both.
            fault = "no memory"
        task, _ = step(task, Started(self.device, generation))
        task, actions = step(task, Failed(fault, type(failure).__name__, text_of(failure)))
        for action in actions:
            match action:
                case Reclaim():
                    # First what was lacking, then everything that can go.
                    is_first = task.memory_retries == 1
                    lacking = failure.requested if is_first and isinstance(failure, AllocationError) else None
                    if not self.evict(lacking).arrays and not gc.collect():
                        raise failure
                case Fail():
                    raise failure
                case _:  # `self.worker` replaces a dead worker, and the loop is the queue
                    pass
        return task

    def _resident(self, worker: Worker, buffers: Sequence[Any]) -> list[Any] | None:
        """The buffers as handles on that worker, after restoring those that are not there.

        `None` if the worker has died while another thread restored arrays on its successor.
        """
        generation = worker.generation
        now = next(_ticks)
        handles: list[Any] = []
        for each in buffers:
            if type(each) is TrackedBuffer:
                handle = each.handle
                if handle is None or handle.generation != generation:
                    return self._restored(worker, buffers)
                each.used = now
                handles.append(handle)
            else:
                handles.append(each)
        return handles

    def _restored(self, worker: Worker, buffers: Sequence[Any]) -> list[Any] | None:
        """Restores what is not on the worker, under the lock of moves; `None` if the worker has died meanwhile."""
        wanted = [each for each in buffers if type(each) is TrackedBuffer]
        with self._moving:
            if not worker.alive:
                return None
            held = Restoration(worker, wanted, next(_ticks)).carry_out()
        return [held[id(each.lineage)] if type(each) is TrackedBuffer else each for each in buffers]

    # -- when the device cannot be opened any more

    def _restored_on_host(self, buffer: TrackedBuffer) -> HostArray:
        """The values of an array whose device is gone, computed by NumPy, which the user is told."""
        restoration = HostRestoration(self.device, (buffer,))
        with self._moving:
            (values,) = restoration.carry_out()
            # The next one who reads it does not compute it again.
            buffer.lineage.remember(self._copies.keep(values))
        if restoration.programs:
            self._tell(restoration.programs[-1], values.nbytes)
        return values

    def _run_on_host(
        self, program: Program, buffers: Sequence[TrackedBuffer | HostArray], gone: DeviceUnavailable
    ) -> list[TrackedBuffer]:
        """The results of a program on arrays of a device that is gone: they are on no device, and have copies.

        They go to the device when it is there again. Raises `gone` where the host cannot compute or keep them.
        """
        if not buffers or any(spec.dtype == "bfloat16" for spec in program.specs):
            raise gone
        given = [self.download(each) if isinstance(each, TrackedBuffer) else each for each in buffers]
        results = lowering.run(program, given)
        found: list[TrackedBuffer] = []
        for values in results:
            copy = self._copies.hold(values)
            if copy is None:
                raise gone
            lineage = Lineage(spec_of(values), line=users_line())
            lineage.remember(copy)
            now = next(_ticks)
            buffer = TrackedBuffer(None, lineage, self, 0, now)
            self._arrays[now] = lineage.array = ref(buffer)
            self._copies.need(copy, buffer)
            found.append(buffer)
        self._tell(program, sum(each.nbytes for each in (*given, *results)))
        return found

    def _tell(self, program: Program, nbytes: int) -> None:
        """Reports that a program ran on the host because the device is gone."""
        last = len(program.nodes) - 1
        ran_on_host(
            HostOperation(
                operation=program.nodes[last].op.name,
                reason=f"{self.device} is gone",
                line=line_of(program, last),
                bytes_moved=nbytes,
            )
        )

    # -- making room

    def evict(self, nbytes: int | None = None) -> Evicted:
        """Evict arrays, least recently used first, until `nbytes` are free; `None` evicts all that can go.

        Arrays in use stay, and so do arrays that could not be restored.
        """
        arrays = freed = 0
        with self._moving:
            worker = self._worker
            if worker is None or not worker.alive:
                return Evicted()
            for buffer in sorted(self._live_buffers(), key=lambda buffer: buffer.used):
                if nbytes is not None and freed >= nbytes:
                    break
                size = buffer.spec.nbytes
                if size and _is_idle(buffer, worker.generation) and self._is_evictable(buffer):
                    buffer.handle = None
                    arrays += 1
                    freed += size
        return Evicted(arrays, freed)

    def _is_evictable(self, buffer: TrackedBuffer) -> bool:
        """Whether it can be restored, for which a copy is made if there is none."""
        lineage = buffer.lineage
        if lineage.copy is None:
            handle = buffer.handle
            values = self._downloaded(handle) if handle is not None else None
            copy = self._copies.hold(values) if values is not None else None
            if copy is not None:
                lineage.remember(copy)
        return self._pin(buffer)

    def _pin(self, buffer: TrackedBuffer) -> bool:
        """Protect the copies that the array needs while it is on no device. Returns whether it can be restored."""
        order = topological_order([buffer.lineage], has_copy)
        if missing_ancestors(order, has_copy)[id(buffer.lineage)] is not None:
            return False
        leaves = [lineage for lineage, producer in order if producer is None]
        return all(leaf.copy is not None and self._copies.need(leaf.copy, buffer) for leaf in leaves)

    # -- when a worker has died

    def record_loss(self, worker: Worker) -> Loss:
        """Record what becomes of the arrays of a dead worker, before the next one is opened."""
        arrays = [buffer for buffer in self._live_buffers() if buffer.handle is not None]
        order = topological_order([buffer.lineage for buffer in arrays], has_copy)
        missing = missing_ancestors(order, has_copy)
        from_copy = computed = 0
        lost: list[LostArray] = []
        for buffer in arrays:
            buffer.handle = None
            lineage = buffer.lineage
            cause = missing[id(lineage)]
            if cause is not None:
                why = describe_loss(lineage, cause)
                lost.append(LostArray(lineage.describe(), lineage.spec.nbytes, why))
                continue
            self._pin(buffer)
            from_copy += lineage.copy is not None
            computed += lineage.copy is None
        return Loss(
            device=self.device,
            generation=worker.generation,
            why=worker.ended or "",
            restorable_from_copy=from_copy,
            recomputable=computed,
            lost=tuple(lost),
        )


def _drop_traceback(error: BaseException) -> None:
    """Its frames hold handles, which must be released before a retry."""
    error.__traceback__ = None


def _uploaded(worker: Worker, values: HostArray) -> tuple[Handle, HostArray | None]:
    """Upload values, and for large ones keep the memory in which they crossed, so that they are not copied again."""
    if values.nbytes >= _WORTH_LENDING and isinstance(worker, Lending):
        return worker.upload_and_lend(values)
    return worker.upload(values), None


def _is_idle(buffer: TrackedBuffer, generation: int) -> bool:
    """Whether it is on the device and no call uses it: a call would hold a reference to its handle."""
    if is_shared(buffer, "handle"):
        return False
    handle = buffer.handle
    return handle is not None and handle.generation == generation
