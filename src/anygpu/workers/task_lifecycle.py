"""The life of a task as a pure state machine: events in, actions out.

Nothing here runs, waits or looks at a clock. The caller that runs a task passes each event to `step` and performs the
actions it returns, in order. Errors decide what comes next, and only work that is safe to repeat is repeated. ::

    status       Started     Finished         Failed                Cancelled         Expired
    ─────────    ───────     ────────         ──────                ─────────         ───────
    queued       → running   ✗                ✗                     → cancelled       → failed: late
    running      ✗           → done           → queued, or failed   stopping          → abandoned: late
    … stopping   ✗           → cancelled      → cancelled           –                 → abandoned: cancelled
    abandoned    ✗           → failed: Free   → failed: Free        –                 –
    final        ✗           ✗                ✗                     –                 –

    ✗ raises InvalidTransition     – changes nothing: these two may come at any moment
    A task that was stopping when it was abandoned becomes cancelled instead of failed.

What a failure leads to, the first row that applies::

    fault          next                                                                        in a launch with others
    ─────          ────                                                                        ───────────────────────
    user, late     fails                                                                       the same: it is its own
    (any)          fails, unless the task is repeatable or had not begun
    hung           fails (as late if its deadline is over); the device is probed               again, alone
    lost           new worker, again anywhere; the third worker that dies makes it poison      again, alone; not counted
    poisoned       as lost
    missing        again anywhere (at most three times), then fails                            again, alone
    too big        split further, here (at most three times), then another device              again, alone
    no memory      memory reclaimed, again here; then split further as well; then another one  again, alone
    over budget    buffers evicted, again here; then as too big                                again, alone
    unsupported    another device                                                              again, alone
    unavailable    another device                                                              the same

With no other device left the task fails with the last fault. Every retry is bounded, so every task comes to an end.
No action restores missing arguments: the device that runs the task next restores them when it is given them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from anygpu.errors import (
    DeadlineExceeded,
    DeviceHung,
    DeviceLost,
    DevicePoisoned,
    DeviceUnavailable,
    InvalidTransition,
    MissingExtra,
    NotRecordable,
    OutOfMemory,
    OverBudget,
    TooBig,
    Unsupported,
)

#: The kind of failure, which decides what comes next. `user`: anygpu can do nothing about it; `missing`: an argument
#: was on a worker that is gone, while the worker that ran the task is healthy.
TaskFault = Literal[
    "too big",
    "no memory",
    "over budget",
    "lost",
    "poisoned",
    "missing",
    "hung",
    "unsupported",
    "unavailable",
    "late",
    "user",
]

#: queued: waits for a device; running: is on one; abandoned: its caller has an error, and the device is still busy with
#: it; the last three are final.
Status = Literal["queued", "running", "abandoned", "done", "failed", "cancelled"]

FINAL: frozenset[Status] = frozenset({"done", "failed", "cancelled"})

#: Bounds on one device: splits, retries after memory was reclaimed, and retries after an eviction.
CUTS = 3
MEMORY_RETRIES = 2
EVICTIONS = 1
#: Bounds in the life of a task: retries for missing arguments, and workers that may die of it.
RESTORES = 3
DEATHS = 3


# -- events


class Started(msgspec.Struct, frozen=True, gc=False):
    """A worker runs the task, in one launch with others or alone.

    If a device has no worker, tasks that wait for it get `Started` and then `Failed("unavailable")`.
    """

    device: str
    generation: int
    alone: bool = True
    #: Whether its worker may be killed to keep its deadline: not while others in the same launch still have time.
    killable: bool = False


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The device has returned results."""


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The device has returned an error, or never will return: it is free, or dead."""

    fault: TaskFault
    #: The error's name and message.
    error: str
    message: str
    #: Whether the program can be split into pieces, or smaller pieces, for this device.
    cuttable: bool = False
    #: Whether any of the work may have been done. A task that had not begun may always be retried.
    begun: bool = True
    #: Whether its own deadline was over: then the worker was killed because of this task.
    overdue: bool = False


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """The caller has cancelled it."""


class Expired(msgspec.Struct, frozen=True, gc=False):
    """Its deadline is over."""


TaskEvent = Started | Finished | Failed | Cancelled | Expired


# -- actions


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """Queue it again: for this device only, or for any that is not excluded."""

    device: str | None = None


class SplitFurther(msgspec.Struct, frozen=True, gc=False):
    """Split it into pieces for that device, or into smaller pieces."""

    device: str


class Reclaim(msgspec.Struct, frozen=True, gc=False):
    """Free cached memory and unreferenced buffers on that device."""

    device: str


class EvictBuffers(msgspec.Struct, frozen=True, gc=False):
    """Evict buffers from that device that can be restored from a copy or recomputed."""

    device: str


class Replace(msgspec.Struct, frozen=True, gc=False):
    """Start a new worker for that device; buffers of the old one are recorded as restorable or lost."""

    device: str


class Kill(msgspec.Struct, frozen=True, gc=False):
    """Kill the worker, which is busy with the task. Its lane will report `Failed`, or `Finished` if it just had."""

    device: str


class Probe(msgspec.Struct, frozen=True, gc=False):
    """Like `Replace`, and verify the device before anything else runs there: its worker was killed."""

    device: str


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Give the caller the result. Happens at most once, and never together with `Fail`."""


class Fail(msgspec.Struct, frozen=True, gc=False):
    """Give the caller the error. Happens at most once, and never together with `Deliver`."""

    #: `poison` if it has killed three workers; `late` if its deadline was over; else the last fault.
    why: TaskFault | Literal["poison", "cancelled"]
    #: Whether a device is still busy with it.
    still_running: bool = False


class DeviceFree(msgspec.Struct, frozen=True, gc=False):
    """The device has finished with an abandoned task and may take another."""

    device: str


Action = Requeue | SplitFurther | Reclaim | EvictBuffers | Replace | Kill | Probe | Deliver | Fail | DeviceFree


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The facts about one task that decisions need."""

    name: str
    #: Where it may run, in no order; the first event decides. A set where there are many: each start asks for one.
    devices: tuple[str, ...] | frozenset[str]
    #: Whether it may run again after it was interrupted at an unknown point.
    repeatable: bool = True
    status: Status = "queued"
    #: The device that it is on, or was on last.
    device: str | None = None
    generation: int = 0
    alone: bool = True
    killable: bool = False
    #: While it is queued: the only device that it may start on.
    pinned_device: str | None = None
    #: A launch that it shared has failed, and any member may be the cause: from now on it runs alone.
    suspect: bool = False
    excluded: tuple[str, ...] = ()
    #: On the device that it was on last: retries after a lack of memory, evictions, cuts.
    memory_retries: int = 0
    evictions: int = 0
    cuts: int = 0
    #: How often its arguments had to be restored.
    restores: int = 0
    #: Workers that died while it ran alone on them.
    deaths: int = 0
    #: Its caller was told that it is cancelled, so no result may be delivered.
    cancelled: bool = False
    #: A cancelled or expired task that still runs is stopped at the next opportunity.
    stopping: bool = False
    #: Every event so far, with the actions it led to. `describe` turns it into sentences.
    history: tuple[tuple[TaskEvent, tuple[Action, ...]], ...] = ()


# -- the machine

#: The task after an event, and the actions to perform.
TaskStep = tuple[Task, tuple[Action, ...]]

_NOTHING: tuple[Action, ...] = ()
_DELIVER: tuple[Action, ...] = (Deliver(),)


def step(task: Task, event: TaskEvent) -> TaskStep:
    """The task after the event, and the actions to perform, in order.

    The caller gets its error before a device is replaced or probed, so that it does not wait for that.
    """
    status = task.status
    if status == "running":
        if isinstance(event, Finished) and not task.stopping:
            return replace(task, status="done", history=(*task.history, (event, _DELIVER))), _DELIVER
        return _while_running(task, event)
    if status == "queued":
        if isinstance(event, Started):
            return _start(task, event)
        if isinstance(event, Cancelled):
            return _transition(task, event, Fail("cancelled"), status="cancelled", cancelled=True)
        if isinstance(event, Expired):
            return _transition(task, event, Fail("late"), status="failed")
    elif isinstance(event, Cancelled | Expired):
        # A cancellation or a deadline may arrive after the task has ended.
        return task, _NOTHING
    elif status == "abandoned" and isinstance(event, Finished | Failed):
        return _free(task, event)
    raise InvalidTransition(task.name, type(event).__name__, status, describe(task))


def _start(task: Task, event: Started) -> TaskStep:
    """Starts the task on a device that it is queued for. Raises `InvalidTransition` for any other.

    Retries for memory are counted for each device, so that they start anew on another one.
    """
    device = event.device
    if (
        device not in task.devices
        or device in task.excluded
        or (task.pinned_device is not None and task.pinned_device != device)
        or (task.suspect and not event.alone)
    ):
        raise _wrong_start(task, event)
    same = task.device is None or task.device == device
    after = replace(
        task,
        status="running",
        device=device,
        generation=event.generation,
        alone=event.alone,
        killable=event.killable,
        memory_retries=task.memory_retries if same else 0,
        evictions=task.evictions if same else 0,
        cuts=task.cuts if same else 0,
        history=(*task.history, (event, _NOTHING)),
    )
    return after, _NOTHING


def _wrong_start(task: Task, event: Started) -> InvalidTransition:
    if event.device not in task.devices:
        status = f"queued for {' or '.join(sorted(task.devices)) or 'no device'}"
    elif event.device in task.excluded:
        status = f"queued, and has given up {' and '.join(task.excluded)}"
    elif task.pinned_device is not None and task.pinned_device != event.device:
        status = f"queued for {task.pinned_device}"
    else:
        status = "queued to run alone"
    company = "" if event.alone else " with others"
    return InvalidTransition(task.name, f"Started on {event.device}{company}", status, describe(task))


def _while_running(task: Task, event: TaskEvent) -> TaskStep:
    """Handles an event of a running task, but for a plain `Finished`.

    A task that was cancelled stops between two pieces, and fails when its device is free. One that has expired fails at
    once: its worker is killed if it can be, and else it is abandoned until it ends by itself.
    """
    device = task.device or ""
    if isinstance(event, Failed):
        return _fail(task, event, device)
    if isinstance(event, Finished):
        return _transition(task, event, Fail("cancelled"), status="cancelled")
    if isinstance(event, Cancelled):
        if task.cancelled:
            return task, _NOTHING
        return _transition(task, event, cancelled=True, stopping=True)
    if isinstance(event, Expired):
        why: Literal["cancelled", "late"] = "cancelled" if task.cancelled else "late"
        actions = (Kill(device), Fail(why)) if task.killable else (Fail(why, still_running=True),)
        return _transition(task, event, *actions, status="abandoned", stopping=True)
    raise InvalidTransition(task.name, type(event).__name__, f"running on {device}", describe(task))


def _free(task: Task, event: Finished | Failed) -> TaskStep:
    """The device has finished with an abandoned task: its result is dropped, and the device is free again."""
    device = task.device or ""
    end = "cancelled" if task.cancelled else "failed"
    repairs = (Probe(device),) if task.killable else _repairs(event, device)
    return _transition(task, event, *repairs, DeviceFree(device), status=end)


def _repairs(event: TaskEvent, device: str) -> tuple[Action, ...]:
    """The repairs of a worker before it can be used again, however the task ends."""
    fault = event.fault if isinstance(event, Failed) else None
    if fault == "hung":
        return (Probe(device),)
    if fault == "lost" or fault == "poisoned":
        return (Replace(device),)
    return _NOTHING


# -- failures


def _fail(task: Task, event: Failed, device: str) -> TaskStep:
    """Decides what follows from a failed attempt.

    Cancelled and expired tasks fail, and so do errors of the user's own and tasks that must not be repeated. A batch is
    run again one by one, to find the task that is the cause. A task whose workers died too often is poison. After a
    lack of memory the device is tried again, and then it is given up for another one.
    """
    fault, repairs = event.fault, _repairs(event, device)
    if task.cancelled:
        return _transition(task, event, Fail("cancelled"), *repairs, status="cancelled")
    if fault == "hung" and event.overdue:
        return _fail_with(task, event, "late", repairs)
    if fault == "user" or fault == "late" or (event.begun and not task.repeatable):
        return _fail_with(task, event, fault, repairs)
    if not task.alone and fault != "unavailable":
        # One member of the launch is the cause, or their number: each is retried alone to find out.
        return _requeue(task, event, None if repairs else device, repairs, suspect=True)
    if fault == "hung":
        # It may never end, so it is not repeated.
        return _fail_with(task, event, fault, repairs)
    if fault == "lost" or fault == "poisoned":
        deaths = task.deaths + 1
        if deaths >= DEATHS:
            return _fail_with(task, event, "poison", repairs, deaths=deaths)
        return _requeue(task, event, None, repairs, deaths=deaths)
    if fault == "missing":
        if task.restores >= RESTORES:
            return _fail_with(task, event, fault)
        return _requeue(task, event, None, restores=task.restores + 1)
    return _retry_for_memory(task, event, device) or _exclude(task, event, device)


def _retry_for_memory(task: Task, event: Failed, device: str) -> TaskStep | None:
    """A retry on the same device after a failed allocation; `None` if the retries are used up."""
    fault = event.fault
    can_cut = event.cuttable and task.cuts < CUTS
    if fault == "no memory":
        if task.memory_retries >= MEMORY_RETRIES:
            return None
        retries = task.memory_retries + 1
        if retries > 1 and can_cut:
            actions = (Reclaim(device), SplitFurther(device))
            return _requeue(task, event, device, actions, memory_retries=retries, cuts=task.cuts + 1)
        return _requeue(task, event, device, (Reclaim(device),), memory_retries=retries)
    if fault == "over budget" and task.evictions < EVICTIONS:
        return _requeue(task, event, device, (EvictBuffers(device),), evictions=task.evictions + 1)
    if (fault == "over budget" or fault == "too big") and can_cut:
        return _requeue(task, event, device, (SplitFurther(device),), cuts=task.cuts + 1)
    return None


def _exclude(task: Task, event: Failed, device: str) -> TaskStep:
    """Gives up a device for this task; the task fails with the last one."""
    excluded = (*task.excluded, device)
    if len(excluded) >= len(task.devices) and all(each in excluded for each in task.devices):
        return _fail_with(task, event, event.fault, excluded=excluded)
    return _requeue(task, event, None, excluded=excluded)


def _requeue(
    task: Task, event: Failed, device: str | None, before: tuple[Action, ...] = (), **changes: Any
) -> TaskStep:
    return _transition(task, event, *before, Requeue(device), status="queued", pinned_device=device, **changes)


def _fail_with(
    task: Task, event: Failed, why: TaskFault | Literal["poison"], repairs: tuple[Action, ...] = (), **changes: Any
) -> TaskStep:
    return _transition(task, event, Fail(why), *repairs, status="failed", **changes)


def _transition(task: Task, event: TaskEvent, *actions: Action, **changes: Any) -> TaskStep:
    return replace(task, history=(*task.history, (event, actions)), **changes), actions


# -- for people


def describe(task: Task) -> tuple[str, ...]:
    """The history of the task, one sentence per event."""
    sentences = []
    device = "a device"
    for event, actions in task.history:
        if isinstance(event, Started):
            device = event.device
        then = _listed([_done(action) for action in actions])
        sentences.append(f"{_happened(event, device)}{f': {then}' if then else ''}.")
    return tuple(sentences)


def _happened(event: TaskEvent, device: str) -> str:
    """Returns one event as a clause of the task's history."""
    match event:
        case Started():
            company = "alone" if event.alone else "with others"
            return f"it started {company} on {device} (worker {event.generation})"
        case Finished():
            return f"{device} had its result"
        case Failed():
            first = event.message.split("\n", 1)[0].rstrip(".")
            return f"it failed on {device} ({event.fault}; {event.error}: {first})"
        case Cancelled():
            return "its caller cancelled it"
        case Expired():
            return "its time was over"


def _done(action: Action) -> str:
    """Returns one action as a clause of the task's history."""
    match action:
        case Requeue(device=None):
            return "it was queued for any device that is left"
        case Requeue():
            return f"it was queued for {action.device}"
        case SplitFurther():
            return f"it was cut smaller for {action.device}"
        case Reclaim():
            return f"memory was reclaimed on {action.device}"
        case EvictBuffers():
            return f"arrays were evicted from {action.device}"
        case Replace():
            return f"{action.device} got a new worker"
        case Kill():
            return f"the worker of {action.device} was killed"
        case Probe():
            return f"{action.device} got a new worker and was probed"
        case Deliver():
            return "its caller got the result"
        case Fail():
            busy = ", while the device was still busy with it" if action.still_running else ""
            return f"its caller got an error ({action.why}{busy})"
        case DeviceFree():
            return f"{action.device} was free again"


def _listed(phrases: Sequence[str]) -> str:
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}"


_FAULTS: dict[type[BaseException], TaskFault] = {
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


def fault_of(error: BaseException, *, device: str | None = None, generation: int | None = None) -> TaskFault:
    """The fault that an error stands for; errors that anygpu cannot handle are the user's.

    The device and the generation of the worker that ran the task distinguish the loss of that worker (`lost`) from the
    loss of another one that held an argument (`missing`).
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
