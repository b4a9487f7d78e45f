"""Recovery from failures on devices: the task's state machine decides, and what it decided is done here.

Calls that their caller waits for, tasks of a queue and chunks of a stream come here, so there is one rule for all:
`recover` is for any work that has a `LockedTask`, `handle_failure` for a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from anygpu.calls.options import Options
from anygpu.errors import AllocationError, AnyGPUError, PoisonTask, text_of
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.plan.chunking import Chunks
from anygpu.placement.planner import Planner
from anygpu.receipts.receipt import warn_fallback
from anygpu.workers.task_lifecycle import (
    Action,
    DeviceFree,
    EvictBuffers,
    Fail,
    Failed,
    Probe,
    Reclaim,
    Replace,
    Requeue,
    SplitFurther,
    Task,
    TaskEvent,
    fault_of,
    step,
)

#: `threading.RLock` is a function, and this is what it makes.
Lock = AbstractContextManager[Any]


class LockedTask:
    """A task that several threads tell of what happens to it, one at a time."""

    __slots__ = ("_lock", "task")

    def __init__(self, task: Task, lock: Lock | None = None) -> None:
        self.task = task
        self._lock = lock or threading.RLock()

    def tell(self, event: TaskEvent) -> tuple[Action, ...]:
        """Report an event; the actions to take now are returned."""
        with self._lock:
            self.task, actions = step(self.task, event)
        return actions


def task_for(call: Call, first: str, *, idempotent: bool = False) -> Task:
    """A call as a task of the state machine: programs are safe to repeat, and may go elsewhere if the caller allows
    that.

    `first` is the candidate that it runs on first.
    """
    site = call.site
    devices: tuple[str, ...] | frozenset[str] = (first,)
    if site.options.fallback != "raise" and site.programs.current is not None:
        devices = site.candidates.names if first in site.candidates.names else (first, *site.candidates.names)
    return Task(name=site.task, devices=devices, repeatable=site.programs.current is not None or idempotent)


def recover(
    life: LockedTask,
    name: str,
    failure: AnyGPUError,
    planner: Planner,
    options: Options,
    *,
    split_further: Callable[[], None] | None = None,
    overdue: bool = False,
    refused: Callable[[Fail], None] | None = None,
) -> Action | None:
    """Tell the task that it failed on the candidate `name`, and prepare for another attempt; return what to do next.

    That is `Requeue` (on its device, or on any that the task has not excluded), `Fail`, or `Free` for a task that no
    caller waits for. `refused` is called as soon as the task is known to have failed, before a device is opened again.

    `split_further` makes the work smaller for it; `None` means that it cannot be split.
    """
    fault = fault_of(failure, device=name, generation=life.task.generation or None)
    can_split = split_further is not None
    failed = Failed(fault, type(failure).__name__, text_of(failure), cuttable=can_split, overdue=overdue)
    outcome: Action | None = None
    for action in life.tell(failed):
        match action:
            case SplitFurther() if split_further is not None:
                split_further()
            case Reclaim():
                planner.places.reclaim(name)
            case EvictBuffers():
                planner.places.evict(name)
            case Replace() | Probe():
                # Opening verifies the device. Where it cannot be opened, the next attempt there says why; and only an
                # attempt there waits for it.
                planner.replace(name, options)
            case Fail():
                outcome = action
                if refused is None:
                    break
                refused(action)
            case Requeue() | DeviceFree():
                outcome = outcome or action
    return outcome


def handle_failure(
    call: Call,
    life: LockedTask,
    name: str,
    failure: AnyGPUError,
    *,
    overdue: bool = False,
    refused: Callable[[Fail], None] | None = None,
) -> Action | None:
    """Do what `recover` does, for a call: it may run in smaller chunks, and the chooser hears of an excluded device."""
    site, planner = call.site, call.planner
    chunks = _smaller(site, name, failure)

    outcome = recover(
        life,
        name,
        failure,
        planner,
        site.options,
        split_further=partial(site.candidates.use_chunks, name, chunks) if chunks is not None else None,
        overdue=overdue,
        refused=refused,
    )
    if name in life.task.excluded:
        with planner.lock:
            site.chooser.failed(name, f"{name} failed: {one_line(text_of(failure))}")
    return outcome


def refusal(call: Call, task: Task, why: Action | None, failure: AnyGPUError) -> AnyGPUError:
    """The error that the caller gets: `PoisonTask` for a call that killed workers again and again, else the failure."""
    if isinstance(why, Fail) and why.why == "poison":
        return PoisonTask(call.site.task, task.deaths, detail=one_line(text_of(failure)))
    return failure


def next_choice(call: Call, task: Task, wanted: str | None, failed: str, failure: AnyGPUError) -> DeviceChoice:
    """The candidate to try next, with the reason; the user is warned of another device, if the options say so."""
    site = call.site
    following = wanted or _next_best(site, task, call.planner)
    kind = type(failure).__name__
    if following == failed:
        return DeviceChoice(following, "known", f"it failed there once ({kind}), and can be retried.")
    if site.options.fallback == "warn":
        sentence = f"{site.task} runs on {following} instead of {failed}: {one_line(text_of(failure))}"
        warn_fallback(sentence, cause=(site.task, failed, kind))
    return DeviceChoice(following, "known", f"{failed} failed ({kind}), and this one was next.")


def _next_best(site: CallSite, task: Task, planner: Planner) -> str:
    """The best of the devices that are left: one that is free, as fast as any, in the order of predictions."""
    # In the order of the predictions, because a set of devices has none.
    order = {name: position for position, name in enumerate(site.candidates.predictions)}
    left = sorted(
        (name for name in task.devices if name not in task.excluded),
        key=lambda name: (order.get(name, len(order)), name),
    )
    known = [name for name in left if name in order and site.chooser.may_run(name)]
    if known:
        # Also by how long a device is busy, or being opened again.
        waiting = planner.waiting()

        def finish(name: str) -> float:
            estimate = site.chooser.estimate(name)
            return float("inf") if estimate is None else estimate + waiting.get(name, 0.0)

        return min(known, key=finish)
    # What has not been compared yet is not where a call may end up by chance.
    if site.chooser.checked and "numpy" in left:
        return "numpy"
    return task.device if task.device in left else left[0]


def _smaller(site: CallSite, name: str, failure: AnyGPUError) -> Chunks | None:
    """The chunks for half the memory that failed; `None` if it was another failure, or the program cannot be cut."""
    facts = site.candidates.predictions.get(name)
    if not isinstance(failure, AllocationError) or facts is None:
        return None
    if facts.chunks is not None:
        room = facts.chunks.peak_bytes // 2
    else:
        room = min(failure.limit or facts.plain.peak_bytes, facts.plain.peak_bytes) // 2
    chunks = site.candidates.chunks(name, room)
    return chunks if isinstance(chunks, Chunks) else None


def one_line(text: str) -> str:
    """A text of several lines as one, for sentences."""
    return " ".join(part.strip(" -") for part in text.splitlines())
