"""Arrays on their way back to a device, after it was lost or after they had made room on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from anygpu._typing import HostArray
from anygpu.errors import DeviceLost
from anygpu.residency import lineage
from anygpu.residency.lineage import Lineage, Producer, TrackedBuffer
from anygpu.workers.worker import Handle, Ran, Worker

#: Does something on the device, and makes room for it there if need be.
WithRoom = Callable[[Callable[[], Any]], Any]


class Restoration:
    """Arrays on their way back to a device: what has to be uploaded and computed for them, each thing once."""

    def __init__(self, worker: Worker, wanted: Sequence[TrackedBuffer], with_room: WithRoom, now: int) -> None:
        """`now` is when they are used, as `Kept.used` has it."""
        self._worker = worker
        self._wanted = wanted
        self._with_room = with_room
        self._now = now
        #: What is on the device, and what is on the host: by the id of its origin.
        self._held: dict[int, Handle] = {}
        self._values: dict[int, HostArray] = {}

    def carry_out(self) -> dict[int, Handle]:
        """Handles of everything that is wanted. Raises `DeviceLost` for what cannot be had again."""
        order = lineage.in_order([kept.origin for kept in self._wanted], self._is_known)
        self._require(order)
        uses = self._uses(order)
        done: set[int] = set()
        for origin, recipe in order:
            if recipe is None and id(origin) in self._values:
                self._back(origin, self._upload(self._values.pop(id(origin))))
            elif recipe is not None and id(recipe) not in done:
                done.add(id(recipe))
                self._compute(origin, recipe, uses)
        for kept in self._wanted:
            kept.used = self._now
        return self._held

    def _is_known(self, origin: Lineage) -> bool:
        """Whether it is on the device, or has a copy, which is held from now on."""
        if id(origin) in self._held or id(origin) in self._values:
            return True
        kept = origin.array() if origin.array is not None else None
        handle = kept.handle if kept is not None else None
        if handle is not None and handle.generation == self._worker.generation:
            self._held[id(origin)] = handle
            return True
        copy = origin.copy
        values = copy.values if copy is not None else None
        if values is not None:
            self._values[id(origin)] = values
        return values is not None

    def _require(self, order: Sequence[lineage.Step]) -> None:
        missing = lineage.what_is_missing(order, self._is_known)
        for kept in self._wanted:
            cause = missing[id(kept.origin)]
            if cause is not None:
                why = lineage.why_lost(kept.origin, cause)
                detail = f"{kept.origin.describe()} cannot be had again: {why}"
                raise DeviceLost(self._worker.device.id, detail=detail, generation=kept.generation)

    def _uses(self, order: Sequence[lineage.Step]) -> dict[int, int]:
        """How often each thing is still needed, so that it can go when it is not."""
        uses: dict[int, int] = {}
        recipes = {id(recipe): recipe for _, recipe in order if recipe is not None}
        inputs = [source for recipe in recipes.values() for source in recipe.inputs]
        for origin in (*inputs, *(kept.origin for kept in self._wanted)):
            uses[id(origin)] = uses.get(id(origin), 0) + 1
        return uses

    def _upload(self, values: HostArray) -> Handle:
        handle: Handle = self._with_room(lambda: self._worker.upload(values))
        return handle

    def _compute(self, wanted: Lineage, recipe: Producer, uses: dict[int, int]) -> None:
        given = [self._held[id(source)] for source in recipe.inputs]
        ran: Ran = self._with_room(lambda: self._worker.run(recipe.program, given, keep=True, wait=False))
        for source in recipe.inputs:
            uses[id(source)] -= 1
            if not uses[id(source)]:
                self._held.pop(id(source), None)
        origins = [each() for each in recipe.results] or [wanted]
        for origin, handle in zip(origins, ran.results, strict=True):
            if origin is not None:
                self._back(origin, handle, needed=id(origin) in uses)

    def _back(self, origin: Lineage, handle: Handle, *, needed: bool = True) -> None:
        """It is on the device again. Whoever has an array of it has it again, too."""
        if needed:
            self._held[id(origin)] = handle
        kept = origin.array() if origin.array is not None else None
        if kept is not None and (kept.handle is None or kept.handle.generation != handle.generation):
            kept.handle, kept.generation = handle, handle.generation
