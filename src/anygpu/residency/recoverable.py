"""A device whose worker may die under the arrays on it, and how they outlive that."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import numpy as np

from anygpu._typing import HostArray
from anygpu.array.core.expression import users_line
from anygpu.errors import DeviceLost, DevicePoisoned, OutOfMemory, OverBudget
from anygpu.hardware.device import Device
from anygpu.program.graph import Program
from anygpu.residency import lineage
from anygpu.residency.handle import DeviceHandle, run_and_keep
from anygpu.residency.lineage import (
    DEPTH,
    NODES,
    Evicted,
    HostCopy,
    HostCopyCache,
    Lineage,
    Loss,
    LostArray,
    TrackedBuffer,
)
from anygpu.residency.references import is_shared
from anygpu.residency.restore import Restoration
from anygpu.workers.executor import spec_of
from anygpu.workers.worker import Argument, Handle, Lending, Worker

Result = TypeVar("Result")

#: A program that has seen so many workers die is not run again.
_DEATHS = 3
#: How often room is made for one call: for what it lacked, and then all there is.
_EVICTIONS = 2
#: An array with so many programs behind it is worth a copy, when its values come to the host anyway.
_DEEP = DEPTH // 2
#: So many times beyond its limits, an array that cannot be copied just now does without its history.
_PATIENCE = 2
#: The part of the memory for copies that the history of one array may hold.
_SHARE = 4
#: Bytes of the host that a call may be given before it matters what of it is copied, and how many times more that must
#: be than its results.
_LARGE = 64 << 10
_FAR_MORE = 2
_WORTH_LENDING = 256 << 10
#: Programs that are kept to be the same for all who use them.
_PROGRAMS = 256
#: Arrays that may be gone before anybody looks.
_MANY = 1024

_ticks = itertools.count(1)


class RecoverableDevice(DeviceHandle):
    """A device whose worker is a process that may die: its arrays are `TrackedBuffer`, and outlive the worker.

    They come back when they are used. A program that was under way when the worker died is run again.
    """

    def __init__(self, facts: Device, find_worker: Callable[[], Worker], copies: HostCopyCache) -> None:
        super().__init__(facts, find_worker)
        self._copies = copies
        #: Every array, by a number of its own; now and then those that are gone are taken out. Without a lock: adding
        #: one, removing one and listing them are single steps.
        self._arrays: dict[int, ref[TrackedBuffer]] = {}
        self._look_again = _MANY
        #: Of handles that others were given. `_listing` is held to add one.
        self._lent: WeakKeyDictionary[Handle, Lineage] = WeakKeyDictionary()
        self._programs: dict[str, Program] = {}
        self._locks()

    def _locks(self) -> None:
        #: Held while arrays come back, or leave.
        self._mending = threading.RLock()
        self._listing = threading.Lock()

    def forked(self) -> None:
        """In a process that was forked from ours."""
        self._locks()

    # -- what a place does

    def upload(self, values: HostArray) -> TrackedBuffer:
        handle, lent = self._persist((), lambda worker, _: _uploaded(worker, values))
        origin = Lineage(handle.spec, line=users_line())
        origin.remember(self._copies.keep(values) if lent is None else self._copies.keep(lent, owned=True))
        return self._kept([handle], [origin])[0]

    def upload_with(self, values: HostArray, copy: HostCopy | str) -> TrackedBuffer:
        """What the array can be had again from is somebody else's to keep, or there is a reason why it cannot."""
        handle = self._persist((), lambda worker, _: worker.upload(values))
        origin = Lineage(handle.spec, line=users_line())
        origin.remember(copy)
        return self._kept([handle], [origin])[0]

    def keep_copy(self, buffer: TrackedBuffer, values: HostArray) -> None:
        """Values that nobody writes to become the array's copy, within what copies may take."""
        buffer.origin.remember(self._copies.keep(values, owned=True))

    def adopt(self, array: Any) -> TrackedBuffer:
        return self.upload(np.from_dlpack(array))

    def download(self, buffer: TrackedBuffer) -> HostArray:
        origin = buffer.origin
        worker = self._worker
        if buffer.handle is None or worker is None or not worker.alive:
            copy = origin.copy
            values = copy.values if copy is not None else None
            if values is not None:
                return values.view()
        values = self._persist((buffer,), lambda worker, handles: worker.download(handles[0]))
        if origin.copy is None and (origin.recipe is None or origin.depth >= _DEEP):
            origin.remember(self._copies.keep(values))
        return values

    def native(self, buffer: TrackedBuffer) -> Any:
        return self._persist((buffer,), lambda worker, handles: worker.native(handles[0]))

    def run(self, program: Program, buffers: Sequence[TrackedBuffer | HostArray]) -> list[TrackedBuffer]:
        # Without a surprise it is done; what `_persist` costs is paid only then.
        worker, handles = self._ready(buffers)
        results: list[Any] | None = None
        deaths = 0
        try:
            results = run_and_keep(worker, program, handles)
        except (DeviceLost, DevicePoisoned) as error:
            _forget_frames(error)
            deaths = 1
        except (OutOfMemory, OverBudget) as error:
            _forget_frames(error)
        if results is None:
            del worker, handles
            results = self._persist(buffers, lambda worker, handles: run_and_keep(worker, program, handles), deaths)
        return self.keep(program, buffers, results)

    def lend(self, buffer: TrackedBuffer) -> Handle:
        """The array on the device, for somebody who talks to the worker."""
        handle: Handle
        _, (handle,) = self._ready((buffer,))
        with self._listing:
            self._lent[handle] = buffer.origin
        return handle

    # -- where results come from

    def keep(
        self, program: Program, given: Sequence[TrackedBuffer | Argument], results: Sequence[Handle]
    ) -> list[TrackedBuffer]:
        """The results of a program that was run on `given`, with the way to have them again."""
        sources: list[Lineage] = []
        for each in given:
            if type(each) is not TrackedBuffer:
                return self._keep_of_others(program, given, results)
            sources.append(each.origin)
        return self._keep_of(program, sources, given, results)

    def _keep_of(
        self,
        program: Program,
        sources: list[Lineage],
        given: Sequence[TrackedBuffer | Argument],
        results: Sequence[Handle],
    ) -> list[TrackedBuffer]:
        known = self._programs.get(program.key)
        if known is None:
            if len(self._programs) >= _PROGRAMS:
                self._programs.clear()
            known = self._programs[program.key] = program
        if known.lines != program.lines:
            known = program
        origins = lineage.made_by(known, sources)
        first = origins[0]
        if first.depth > DEPTH or first.nodes > NODES or first.held > self._copies.budget // _SHARE:
            self._shorten(program, sources, given)
            origins = lineage.made_by(known, sources)
        return self._kept(results, origins)

    def _keep_of_others(
        self, program: Program, given: Sequence[TrackedBuffer | Argument], results: Sequence[Handle]
    ) -> list[TrackedBuffer]:
        """As a worker was given them: handles that were lent, and values of the host.

        Values are copied for the results; if there are many bytes of them, and far more than there are of the results,
        then these are copied instead.
        """
        on_host = sum(each.nbytes for each in given if isinstance(each, np.ndarray))
        if on_host > _LARGE and on_host > _FAR_MORE * sum(handle.spec.nbytes for handle in results):
            copied = self._copied(results)
            if copied is not None:
                return copied
        sources = [each.origin if isinstance(each, TrackedBuffer) else self._origin_of(each) for each in given]
        return self._keep_of(program, sources, given, results)

    def _kept(self, handles: Sequence[Handle], origins: Sequence[Lineage]) -> list[TrackedBuffer]:
        found: list[TrackedBuffer] = []
        for handle, origin in zip(handles, origins, strict=True):
            now = next(_ticks)
            kept = TrackedBuffer(handle, origin, self, handle.generation, now)
            self._arrays[now] = origin.array = ref(kept)
            found.append(kept)
        if len(self._arrays) > self._look_again:
            self._forget_gone()
        return found

    def _forget_gone(self) -> None:
        for number, each in list(self._arrays.items()):
            if each() is None:
                self._arrays.pop(number, None)
        self._look_again = 2 * len(self._arrays) + _MANY

    def _listed(self) -> list[TrackedBuffer]:
        """Every array that there is."""
        arrays = [each() for each in list(self._arrays.values())]
        return [kept for kept in arrays if kept is not None]

    def _origin_of(self, given: Argument) -> Lineage:
        if isinstance(given, np.ndarray):
            origin = Lineage(spec_of(given))
            origin.remember(self._copies.keep(given))
            return origin
        known = self._lent.get(given)
        if known is None:
            known = Lineage(given.spec)
            known.why = "nobody said where it came from"
        return known

    def _copied(self, results: Sequence[Handle]) -> list[TrackedBuffer] | None:
        """The results with copies of their own; none if the device has no answer to that now."""
        origins = []
        for handle in results:
            values = self._values(handle)
            if values is None:
                return None
            origin = Lineage(handle.spec)
            origin.remember(self._copies.keep(values))
            origins.append(origin)
        return self._kept(results, origins)

    def _values(self, handle: Handle) -> HostArray | None:
        worker = self._worker
        if worker is None or worker.generation != handle.generation:
            return None
        try:
            return worker.download(handle)
        except Exception as error:  # noqa: BLE001 - one of the program is its user's, who meets it when they look
            _forget_frames(error)
            return None

    def _is_long(self, origin: Lineage, times: int = 1) -> bool:
        return origin.depth > times * DEPTH or origin.nodes > times * NODES

    def _shorten(self, program: Program, sources: Sequence[Lineage], given: Sequence[TrackedBuffer | Argument]) -> None:
        """A long history is cut where it meets the program, with a copy of what was computed so far.

        So is one that holds many copies of arrays which are gone: of a loop over batches, only its state is copied.
        """
        with self._mending:
            for source in sources:
                lineage.recount(source)
            for source, each in sorted(zip(sources, given, strict=True), key=lambda pair: -pair[0].depth):
                result = lineage.made_by(program, sources)[0]
                holds_much = result.held > self._copies.budget // _SHARE and source.spec.nbytes < source.held
                if source.recipe is not None and (holds_much or self._is_long(result)):
                    self._cut(
                        source, each.handle if isinstance(each, TrackedBuffer) else each, must=self._is_long(result)
                    )

    def _cut(self, source: Lineage, on_device: Any, *, must: bool) -> None:
        """With a copy; without one only if it must be, and no copy is allowed or could be had for long."""
        if source.copy is None:
            values = self._values(on_device) if on_device is not None else None
            if values is not None:
                source.remember(self._copies.keep(values))
            elif self._is_long(source, _PATIENCE):
                source.why = "its history became too long, and it could not be copied to the host"
            else:
                return
        if source.copy is not None or must:
            source.cut()

    # -- arrays that are on the device, and those that have to come back first

    def _persist(self, buffers: Sequence[Any], use: Callable[[Worker, list[Any]], Result], deaths: int = 0) -> Result:
        """Use the worker. When it dies the next one is used, and when it has no room some is made."""
        while True:
            worker, handles = self._ready(buffers)
            try:
                return self._with_room(lambda worker=worker, handles=handles: use(worker, handles))  # type: ignore[misc]
            except (DeviceLost, DevicePoisoned) as error:
                deaths += 1
                if deaths == _DEATHS:
                    raise
                _forget_frames(error)

    def _ready(self, buffers: Sequence[Any]) -> tuple[Worker, list[Any]]:
        worker = self.worker
        generation = worker.generation
        now = next(_ticks)
        handles: list[Any] = []
        for each in buffers:
            if type(each) is TrackedBuffer:
                handle = each.handle
                if handle is None or handle.generation != generation:
                    return self._restored(buffers)
                each.used = now
                handles.append(handle)
            else:
                handles.append(each)
        return worker, handles

    def _restored(self, buffers: Sequence[Any]) -> tuple[Worker, list[Any]]:
        """Like `_ready`, where something has to come back."""
        deaths = 0
        with self._mending:
            while True:
                worker = self.worker
                wanted = [each for each in buffers if type(each) is TrackedBuffer]
                try:
                    held = Restoration(worker, wanted, self._with_room, next(_ticks)).carry_out()
                except (DeviceLost, DevicePoisoned) as error:
                    deaths += 1
                    if worker.alive or deaths == _DEATHS:
                        raise
                    _forget_frames(error)
                    continue
                return worker, [held[id(each.origin)] if type(each) is TrackedBuffer else each for each in buffers]

    def _with_room(self, use: Callable[[], Result]) -> Result:
        tries = 0
        while True:
            try:
                return use()
            except (OutOfMemory, OverBudget) as error:
                failure = error
                _forget_frames(error)
            tries += 1
            if tries > _EVICTIONS:
                raise failure
            if not self.evict(failure.requested if tries == 1 else None).arrays and not gc.collect():
                raise failure

    # -- making room

    def evict(self, nbytes: int | None = None) -> Evicted:
        """Take arrays off the device, those first that were not used for the longest time; `None` for all that can go.

        Arrays that somebody uses now stay, and those that could not come back.
        """
        arrays = freed = 0
        with self._mending:
            worker = self._worker
            if worker is None or not worker.alive:
                return Evicted()
            for kept in sorted(self._listed(), key=lambda kept: kept.used):
                if nbytes is not None and freed >= nbytes:
                    break
                size = kept.spec.nbytes
                if size and _is_idle(kept, worker.generation) and self._can_leave(kept):
                    kept.handle = None
                    arrays += 1
                    freed += size
        return Evicted(arrays, freed)

    def _can_leave(self, kept: TrackedBuffer) -> bool:
        """Whether it can come back; sees to it that this stays so."""
        origin = kept.origin
        if origin.copy is None:
            handle = kept.handle
            values = self._values(handle) if handle is not None else None
            copy = self._copies.hold(values) if values is not None else None
            if copy is not None:
                origin.remember(copy)
        return self._pin(kept)

    def _pin(self, kept: TrackedBuffer) -> bool:
        """Let nothing be dropped that the array needs to come back, while it is nowhere. Whether it can."""
        order = lineage.in_order([kept.origin], lineage.has_copy)
        if lineage.what_is_missing(order, lineage.has_copy)[id(kept.origin)] is not None:
            return False
        leaves = [origin for origin, recipe in order if recipe is None]
        return all(leaf.copy is not None and self._copies.need(leaf.copy, kept) for leaf in leaves)

    # -- when a worker has died

    def lose(self, worker: Worker) -> Loss:
        """That worker is dead: what becomes of its arrays. The next one is not open yet."""
        arrays = [kept for kept in self._listed() if kept.handle is not None]
        order = lineage.in_order([kept.origin for kept in arrays], lineage.has_copy)
        missing = lineage.what_is_missing(order, lineage.has_copy)
        from_copy = computed = 0
        lost: list[LostArray] = []
        for kept in arrays:
            kept.handle = None
            origin = kept.origin
            cause = missing[id(origin)]
            if cause is not None:
                why = lineage.why_lost(origin, cause)
                lost.append(LostArray(origin.describe(), origin.spec.nbytes, why))
                continue
            self._pin(kept)
            from_copy += origin.copy is not None
            computed += origin.copy is None
        return Loss(
            device=self.device,
            generation=worker.generation,
            why=worker.ended or "",
            restorable_from_copy=from_copy,
            recomputable=computed,
            lost=tuple(lost),
        )


def _forget_frames(error: BaseException) -> None:
    """They hold arrays, which must be free to go before anything is tried again."""
    error.__traceback__ = None


def _uploaded(worker: Worker, values: HostArray) -> tuple[Handle, HostArray | None]:
    """Large values are not copied once more: the memory that they crossed in has them."""
    if values.nbytes >= _WORTH_LENDING and isinstance(worker, Lending):
        return worker.upload_and_lend(values)
    return worker.upload(values), None


def _is_idle(kept: TrackedBuffer, generation: int) -> bool:
    """Whether it is on the device and no call uses it or is about to: a call would hold its handle."""
    if is_shared(kept, "handle"):
        return False
    handle = kept.handle
    return handle is not None and handle.generation == generation
