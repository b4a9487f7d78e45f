"""The life of a task as a pure state machine: what is told of it, and what is to be done next.

Nothing here runs, waits or looks at a clock. Whoever runs a task tells `step` what happened and does what it says, in
order. Errors decide what comes next, and only work that is safe to repeat is repeated. ::

    situation    Started     Finished         Failed                Cancelled         Expired
    ─────────    ───────     ────────         ──────                ─────────         ───────
    queued       → running   ✗                ✗                     → cancelled       → failed: late
    running      ✗           → done           → queued, or failed   stopping          → abandoned: late
    … stopping   ✗           → cancelled      → cancelled           –                 → abandoned: cancelled
    abandoned    ✗           → failed: Free   → failed: Free        –                 –
    final        ✗           ✗                ✗                     –                 –

    ✗ raises InvalidTransition     – changes nothing: these two may come at any moment
    A task that was stopping when it was abandoned becomes cancelled instead of failed.

What a failure leads to, the first that applies::

    fault          next                                                                        in a launch with others
    ─────          ────                                                                        ───────────────────────
    user, late     refused                                                                     the same: it is its own
    (any)          refused, unless it may be repeated or nothing of it was begun
    hung           refused (late if its own time was over); the device is probed               again, alone
    lost           new worker, again anywhere; the third worker that dies makes it poison      again, alone; not counted
    poisoned       as lost
    missing        again anywhere (at most three times), then refused                          again, alone
    too big        cut smaller, here (at most three times), then another device                again, alone
    no memory      memory reclaimed, again here; then cut smaller as well; then another one    again, alone
    over budget    arrays of ours evicted, again here; then as too big                         again, alone
    unsupported    another device                                                              again, alone
    unavailable    another device                                                              the same

With no other device left it is refused, with the last fault. Each of these is bounded, so every task comes to an end.
No action restores missing arguments: the device that the task runs on next restores them when it is given them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from anygpu.errors import InvalidTransition

#: What kind of failure it was, which decides. `user` is everything that is not anygpu's to mend; `missing`: an argument
#: was on a worker that is gone, and the one that the task ran on is well.
Fault = Literal[
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

#: queued: waits for a device; running: is on one; abandoned: its caller has been given an error, and the device is
#: still busy with it; the last three are final.
Situation = Literal["queued", "running", "abandoned", "done", "failed", "cancelled"]

FINAL: frozenset[Situation] = frozenset({"done", "failed", "cancelled"})

#: How often a task is cut smaller, tried again after memory was reclaimed, and after an eviction: each on one device.
CUTS = 3
MEMORY_RETRIES = 2
EVICTIONS = 1
#: How often its arguments are restored, and how many workers may die of it: in its life.
RESTORES = 3
DEATHS = 3


# -- events


class Started(msgspec.Struct, frozen=True, gc=False):
    """It runs on a worker now, with others in one launch or alone.

    Where no worker can be had for a device, tasks that wait for it are told `Started` and then `Failed("unavailable")`.
    """

    device: str
    generation: int
    alone: bool = True
    #: Whether its worker can and may be killed for it, so that a deadline is kept while it runs. Others in the same
    #: launch that still have time speak against it.
    killable: bool = False


class Finished(msgspec.Struct, frozen=True, gc=False):
    """The device has answered, with results."""


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The device has answered, or will not any more: it is free, or dead."""

    fault: Fault
    #: The error's name and message.
    error: str
    message: str
    #: Whether the program can be cut into pieces, or into smaller ones, for this device.
    cuttable: bool = False
    #: Whether anything of the work may have been done. What was not begun may always be tried again.
    begun: bool = True
    #: Whether its own time was over: then a worker that hung was killed because of this task's deadline.
    overdue: bool = False


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """Its caller does not want it any more."""


class Expired(msgspec.Struct, frozen=True, gc=False):
    """Its deadline is over."""


Event = Started | Finished | Failed | Cancelled | Expired


# -- actions


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """Let it wait for a device: for this one and no other, or for any that it has not given up."""

    device: str | None = None


class Smaller(msgspec.Struct, frozen=True, gc=False):
    """Cut it into pieces for that device, or into smaller ones."""

    device: str


class Reclaim(msgspec.Struct, frozen=True, gc=False):
    """Give back what is kept on that device for later, and what nobody has any more."""

    device: str


class Evict(msgspec.Struct, frozen=True, gc=False):
    """Take arrays of ours off that device, of which there is a copy or a recipe."""

    device: str


class Replace(msgspec.Struct, frozen=True, gc=False):
    """A new worker for that device, and what was on the old one restored or named as lost."""

    device: str


class Kill(msgspec.Struct, frozen=True, gc=False):
    """End the worker: it is busy with the task. Its lane will tell that it failed, or that it had just finished."""

    device: str


class Probe(msgspec.Struct, frozen=True, gc=False):
    """As `Replace`, and see whether the device still works before anything else runs there: its worker was killed."""

    device: str


class Deliver(msgspec.Struct, frozen=True, gc=False):
    """Give the caller the result. Happens at most once, and never together with `Refuse`."""


class Refuse(msgspec.Struct, frozen=True, gc=False):
    """Give the caller the error. Happens at most once, and never together with `Deliver`."""

    #: `poison` when it has killed three workers; `late` when its time was over; else the fault that was not mended.
    why: Fault | Literal["poison", "cancelled"]
    #: Whether a device is still busy with it.
    still_running: bool = False


class Free(msgspec.Struct, frozen=True, gc=False):
    """The device is known to be free of a task that was abandoned: it may take another."""

    device: str


Action = Requeue | Smaller | Reclaim | Evict | Replace | Kill | Probe | Deliver | Refuse | Free


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One task as far as decisions need it."""

    name: str
    #: Where it may run, in no order; the first event decides.
    devices: tuple[str, ...]
    #: Whether it may be run again when nobody knows how far it came.
    repeatable: bool = True
    situation: Situation = "queued"
    #: The device that it is on, or was on last.
    device: str | None = None
    generation: int = 0
    alone: bool = True
    killable: bool = False
    #: While it is queued: the only device that it may start on.
    waits_for: str | None = None
    #: It has been in a launch with others that failed, and nobody knows through whom: from now on it runs alone.
    suspect: bool = False
    given_up: tuple[str, ...] = ()
    #: On the device that it was on last: retries after a lack of memory, evictions, cuts.
    memory_retries: int = 0
    evictions: int = 0
    cuts: int = 0
    #: How often its arguments had to be restored.
    restores: int = 0
    #: Workers that died while it ran alone on them.
    deaths: int = 0
    #: Its caller was told that it is cancelled, so no result of it is delivered any more.
    cancelled: bool = False
    #: A cancelled or expired task that still runs is stopped at the next opportunity.
    stopping: bool = False
    #: Everything that has happened to it, and what was done then. `tell` makes sentences of it.
    story: tuple[tuple[Event, tuple[Action, ...]], ...] = ()


# -- the machine

#: What a task becomes, and what is to be done.
Step = tuple[Task, tuple[Action, ...]]

_NOTHING: tuple[Action, ...] = ()
_DELIVER: tuple[Action, ...] = (Deliver(),)


def step(task: Task, event: Event) -> Step:
    """What becomes of the task, and what is to be done, in that order.

    A caller gets his error before a device is replaced or probed, because he need not wait for that.
    """
    situation = task.situation
    if situation == "running":
        if isinstance(event, Finished) and not task.stopping:
            return replace(task, situation="done", story=(*task.story, (event, _DELIVER))), _DELIVER
        return _while_running(task, event)
    if situation == "queued":
        if isinstance(event, Started):
            return _start(task, event)
        if isinstance(event, Cancelled):
            return _after(task, event, Refuse("cancelled"), situation="cancelled", cancelled=True)
        if isinstance(event, Expired):
            return _after(task, event, Refuse("late"), situation="failed")
    elif isinstance(event, Cancelled | Expired):
        # Its caller and its deadline know nothing of how far it is: they may come after the end.
        return task, _NOTHING
    elif situation == "abandoned" and isinstance(event, Finished | Failed):
        return _free(task, event)
    raise InvalidTransition(task.name, type(event).__name__, situation, tell(task))


def _start(task: Task, event: Started) -> Step:
    device = event.device
    if (
        device not in task.devices
        or device in task.given_up
        or (task.waits_for is not None and task.waits_for != device)
        or (task.suspect and not event.alone)
    ):
        raise _wrong_start(task, event)
    story = (*task.story, (event, _NOTHING))
    if task.device is None or task.device == device:
        after = replace(
            task,
            situation="running",
            device=device,
            generation=event.generation,
            alone=event.alone,
            killable=event.killable,
            story=story,
        )
    else:
        after = replace(
            task,
            situation="running",
            device=device,
            generation=event.generation,
            alone=event.alone,
            killable=event.killable,
            memory_retries=0,
            evictions=0,
            cuts=0,
            story=story,
        )
    return after, _NOTHING


def _wrong_start(task: Task, event: Started) -> InvalidTransition:
    if event.device not in task.devices:
        situation = f"queued for {' or '.join(task.devices) or 'no device'}"
    elif event.device in task.given_up:
        situation = f"queued, and has given up {' and '.join(task.given_up)}"
    elif task.waits_for is not None and task.waits_for != event.device:
        situation = f"queued for {task.waits_for}"
    else:
        situation = "queued to run alone"
    company = "" if event.alone else " with others"
    return InvalidTransition(task.name, f"Started on {event.device}{company}", situation, tell(task))


def _while_running(task: Task, event: Event) -> Step:
    device = task.device or ""
    if isinstance(event, Failed):
        return _fail(task, event, device)
    if isinstance(event, Finished):
        return _after(task, event, Refuse("cancelled"), situation="cancelled")
    if isinstance(event, Cancelled):
        if task.cancelled:
            return task, _NOTHING
        return _after(task, event, cancelled=True, stopping=True)
    if isinstance(event, Expired):
        why: Literal["cancelled", "late"] = "cancelled" if task.cancelled else "late"
        actions = (Kill(device), Refuse(why)) if task.killable else (Refuse(why, still_running=True),)
        return _after(task, event, *actions, situation="abandoned", stopping=True)
    raise InvalidTransition(task.name, type(event).__name__, f"running on {device}", tell(task))


def _free(task: Task, event: Finished | Failed) -> Step:
    """The lane of an abandoned task has an answer: nobody waits for it, but the device is free again."""
    device = task.device or ""
    end = "cancelled" if task.cancelled else "failed"
    mending = (Probe(device),) if task.killable else _mending(event, device)
    return _after(task, event, *mending, Free(device), situation=end)


def _mending(event: Event, device: str) -> tuple[Action, ...]:
    """What its worker needs before it can be used again, whatever becomes of the task."""
    fault = event.fault if isinstance(event, Failed) else None
    if fault == "hung":
        return (Probe(device),)
    if fault == "lost" or fault == "poisoned":
        return (Replace(device),)
    return _NOTHING


# -- failures


def _fail(task: Task, event: Failed, device: str) -> Step:
    fault, mending = event.fault, _mending(event, device)
    if task.cancelled:
        return _after(task, event, Refuse("cancelled"), *mending, situation="cancelled")
    if fault == "hung" and event.overdue:
        return _refuse(task, event, "late", mending)
    if fault == "user" or fault == "late" or (event.begun and not task.repeatable):
        return _refuse(task, event, fault, mending)
    if not task.alone and fault != "unavailable":
        # Somebody in the launch is to blame, or only their number: each shows it alone.
        return _again(task, event, None if mending else device, mending, suspect=True)
    if fault == "hung":
        # It may be endless, so it is not repeated.
        return _refuse(task, event, fault, mending)
    if fault == "lost" or fault == "poisoned":
        deaths = task.deaths + 1
        if deaths >= DEATHS:
            return _refuse(task, event, "poison", mending, deaths=deaths)
        return _again(task, event, None, mending, deaths=deaths)
    if fault == "missing":
        if task.restores >= RESTORES:
            return _refuse(task, event, fault)
        return _again(task, event, None, restores=task.restores + 1)
    return _mend_memory(task, event, device) or _give_up(task, event, device)


def _mend_memory(task: Task, event: Failed, device: str) -> Step | None:
    """Another try on the same device, after a lack of memory; `None` when there is nothing left to try."""
    fault = event.fault
    can_cut = event.cuttable and task.cuts < CUTS
    if fault == "no memory":
        if task.memory_retries >= MEMORY_RETRIES:
            return None
        retries = task.memory_retries + 1
        if retries > 1 and can_cut:
            doing = (Reclaim(device), Smaller(device))
            return _again(task, event, device, doing, memory_retries=retries, cuts=task.cuts + 1)
        return _again(task, event, device, (Reclaim(device),), memory_retries=retries)
    if fault == "over budget" and task.evictions < EVICTIONS:
        return _again(task, event, device, (Evict(device),), evictions=task.evictions + 1)
    if (fault == "over budget" or fault == "too big") and can_cut:
        return _again(task, event, device, (Smaller(device),), cuts=task.cuts + 1)
    return None


def _give_up(task: Task, event: Failed, device: str) -> Step:
    given_up = (*task.given_up, device)
    if all(each in given_up for each in task.devices):
        return _refuse(task, event, event.fault, given_up=given_up)
    return _again(task, event, None, given_up=given_up)


def _again(task: Task, event: Failed, device: str | None, before: tuple[Action, ...] = (), **changes: Any) -> Step:
    return _after(task, event, *before, Requeue(device), situation="queued", waits_for=device, **changes)


def _refuse(
    task: Task, event: Failed, why: Fault | Literal["poison"], mending: tuple[Action, ...] = (), **changes: Any
) -> Step:
    return _after(task, event, Refuse(why), *mending, situation="failed", **changes)


def _after(task: Task, event: Event, *actions: Action, **changes: Any) -> Step:
    return replace(task, story=(*task.story, (event, actions)), **changes), actions


# -- for people


def tell(task: Task) -> tuple[str, ...]:
    """Everything that has happened to it, a sentence for each event."""
    sentences = []
    device = "a device"
    for event, actions in task.story:
        if isinstance(event, Started):
            device = event.device
        then = _listed([_done(action) for action in actions])
        sentences.append(f"{_happened(event, device)}{f': {then}' if then else ''}.")
    return tuple(sentences)


def _happened(event: Event, device: str) -> str:
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
    match action:
        case Requeue(device=None):
            return "it was queued for any device that is left"
        case Requeue():
            return f"it was queued for {action.device}"
        case Smaller():
            return f"it was cut smaller for {action.device}"
        case Reclaim():
            return f"memory was reclaimed on {action.device}"
        case Evict():
            return f"arrays were evicted from {action.device}"
        case Replace():
            return f"{action.device} got a new worker"
        case Kill():
            return f"the worker of {action.device} was killed"
        case Probe():
            return f"{action.device} got a new worker and was probed"
        case Deliver():
            return "its caller got the result"
        case Refuse():
            busy = ", while the device was still busy with it" if action.still_running else ""
            return f"its caller got an error ({action.why}{busy})"
        case Free():
            return f"{action.device} was free again"


def _listed(phrases: Sequence[str]) -> str:
    if len(phrases) < 2:
        return "".join(phrases)
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}"
