"""Opaque tasks: functions over a library's own arrays, which are never looked into. Their cost is known by history.

They run in this process, on a worker of their engine. Memory is measured in some of the calls, so that later ones are
not sent to a device that has too little.
"""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

import msgspec
import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.structure import flatten, require_plain, unflatten
from anygpu.base.forks import rlock
from anygpu.base.interrupts import TryAcquire
from anygpu.calls.executing import Executing
from anygpu.errors import DeviceUnavailable, InvalidOption, OutOfMemory
from anygpu.hardware.device import Device
from anygpu.hardware.selection import select
from anygpu.placement.call import Call
from anygpu.placement.opaque_form import EVERY, FIRST, Short, without_memory
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.plan.plan import Plan, Refused
from anygpu.receipts.receipt import Attempt, PhaseTimer, Receipt
from anygpu.workers.thread import ThreadWorker

_FIRST_CALL = "it was the first such call there, and opaque tasks are predicted from history only"
_NOT_LOOKED_INTO = "the function is an opaque task, which is not inspected"

#: Calls on a device before one that was never tried gets a call.
_BEFORE_ANOTHER = 3


def explain_opaque(call: Call) -> Plan:
    """The plan of an opaque task: the devices of its engine, with the times of earlier calls; nothing is run."""
    _consider(call)
    choice, short = _choose(call)
    plan = call.site.candidates.plan(choice.sentence, choice.candidate)
    if not short:
        return plan
    return msgspec.structs.replace(
        plan, refused=(*plan.refused, *(Refused(each.device, each.sentence) for each in short))
    )


def place_opaque(call: Call, timer: PhaseTimer | None = None) -> tuple[Any, Receipt]:
    """Run an opaque task on the device of its engine that was fastest so far; its value with NumPy's arrays, and the
    receipt.

    Raises `DeviceUnavailable` without such a device, `OutOfMemory` where the options allow no other, and the user's
    errors.
    """
    site, planner, chooser = call.site, call.planner, call.site.chooser
    timer = PhaseTimer(planner.clock) if timer is None else timer
    with timer.phase("plan"):
        choice, device, worker = _device_for(call)
        name = choice.candidate
        predicted = chooser.estimate(name) if chooser.tracks[name].recent else None
        form, rows = call.form
        form.recall(call, worker.engine)
        if form.program is not None:
            planner.recall.keep_opaque(site, call.function, form.program)
        predicted_bytes = form.predicted(name, rows)
    with (
        planner.using(name, predicted or 0.0),
        _Measuring(worker, device, form.is_to_be_measured(name, rows)) as memory,
    ):
        with timer.phase("write"):
            leaves, arguments, keywords, there = _uploaded(call, worker)
        with timer.phase("run"):
            value = _call_native(call, worker, device, leaves, arguments, keywords)
        with timer.phase("read"):
            value, back = _downloaded(value, worker)
        peak = memory.peak(kept=back if device.kind == "cpu" else 0)
    if peak is not None:
        form.measured(call, name, rows, peak)
    phases = timer.finish()
    took = phases.total - phases.plan
    with planner.lock:
        chooser.measured(name, took)
        planner.add_seconds(took)
        _offer_another(call)
    unknown = dict.fromkeys(("device_seconds", "kernels"), _NOT_LOOKED_INTO)
    if peak is None:
        unknown["peak_bytes"] = memory.why
    if predicted is None:
        unknown["predicted_seconds"] = _FIRST_CALL
    return value, Receipt(
        task=site.task,
        device=name,
        kind=device.kind,
        reason=choice.sentence,
        phases=phases,
        attempts=(Attempt(device=name, phases=phases),),
        bytes_to_device=there,
        bytes_to_host=back,
        peak_bytes=peak,
        predicted_bytes=predicted_bytes,
        predicted_seconds=predicted,
        unknown=unknown,
    )


def _device_for(call: Call) -> tuple[DeviceChoice, Device, ThreadWorker]:
    """The device that was chosen for a call, and its worker. Raises `OutOfMemory` where it has too little memory and
    the options allow no other."""
    site, planner = call.site, call.planner
    _consider(call)
    choice, short = _choose(call)
    if any(each.device == choice.candidate for each in short) and site.options.fallback == "raise":
        raise _no_memory(call, short[0])
    device = planner.machine().device(choice.candidate)
    worker = planner.worker(choice.candidate, site.options)
    if device is None or not isinstance(worker, ThreadWorker):
        raise InvalidOption(
            f'{site.task} is an opaque task, and code does not go into another process: use isolation="thread" for '
            f"{choice.candidate}."
        )
    return choice, device, worker


def _uploaded(call: Call, worker: ThreadWorker) -> tuple[list[Any], tuple[Any, ...], dict[str, Any], int]:
    """The leaves of a call's arguments as the engine's own arrays, the arguments and keywords made of them, and the
    bytes that were uploaded."""
    leaves, structure = flatten((call.arguments, call.keywords))
    given: list[Any] = []
    nbytes = 0
    for leaf in leaves:
        if isinstance(leaf, np.ndarray | Array):
            require_plain(leaf, f"{call.site.task}, a function of {call.site.options.engine}'s arrays,")
            values = np.asarray(leaf)
            nbytes += values.nbytes
            leaf = worker.native(worker.upload(values))
        given.append(leaf)
    arguments, keywords = unflatten(structure, given)
    return given, arguments, keywords, nbytes


def _call_native(
    call: Call,
    worker: ThreadWorker,
    device: Device,
    leaves: list[Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Any:
    """Call the function with the engine's own arrays, and wait for the device; its value.

    A lack of memory or a lost device is raised as anygpu's error. Everything else is the user's own, and stays as it
    is.
    """
    try:
        calling = getattr(worker.engine, "calling", None)
        with calling(leaves) if calling is not None else contextlib.nullcontext(), Executing():
            value = call.function(*arguments, **keywords)
        worker.engine.synchronize(device)
        return value
    except Exception as error:
        translated = None
        with contextlib.suppress(Exception):  # a user's error may fail when it is looked at
            translated = worker.engine.classify(error, device)
        if translated is None:
            raise
        raise translated from error


def _downloaded(value: Any, worker: ThreadWorker) -> tuple[Any, int]:
    """The value with NumPy's arrays for the engine's, and the bytes that were downloaded."""
    leaves, structure = flatten(value)
    fetched: list[Any] = []
    nbytes = 0
    for leaf in leaves:
        if _is_native(leaf):
            leaf = np.array(worker.download(worker.adopt(leaf)))
            nbytes += leaf.nbytes
        fetched.append(leaf)
    return unflatten(structure, fetched), nbytes


# -- memory

#: Calls that are predicted to take less are not compared with the free memory, which takes a third of a millisecond.
_MUCH = 64 << 20
_NOW_AND_THEN = f"memory is measured in the first {FIRST} calls with such arguments, and then in one of {EVERY}"
#: One call is measured at a time: the high-water mark is that of the process.
_measuring = rlock()


class _Measuring:
    """Around one call: the peak memory that it took beyond what was allocated before, in bytes.

    One call at a time is measured in a process, as the high-water mark is the process's.
    """

    def __init__(self, worker: ThreadWorker, device: Device, wanted: bool) -> None:
        self._meter = _meter(worker, device) if wanted else None
        self._before: int | None = None
        self._acquired = TryAcquire(_measuring)
        #: Why there is no peak.
        self.why = _NOW_AND_THEN if not wanted else "the memory of such a device cannot be measured"

    def __enter__(self) -> _Measuring:
        if self._meter is None:
            return self
        try:
            if self._acquired.acquire():
                self._meter.begin()
                self._before = self._meter.now()
            else:
                self._meter, self.why = None, "another call was being measured"
        except BaseException:
            self.__exit__()
            raise
        return self

    def peak(self, kept: int) -> int | None:
        """The most beyond what was taken before, where the call itself has left `kept` bytes there.

        If less is taken now, others have freed the difference meanwhile, and the peak was reached above a lower level.
        """
        if self._meter is None or self._before is None:
            return None
        found: int | None = self._meter.peak()
        now: int | None = self._meter.now()
        if found is None or now is None:
            return None
        return max(0, found - min(self._before, now - kept))

    def __exit__(self, *_: object) -> None:
        self._acquired.release()


def _meter(worker: Any, device: Device) -> Any:
    """The engine's meter of a device's memory, if it has one."""
    find = getattr(worker.engine, "meter", None)
    return find(device) if find is not None else None


def free_bytes(call: Call, name: str) -> int | None:
    """The bytes that are free on a device now; `None` when that cannot be told."""
    device = call.planner.machine().device(name)
    worker = call.planner.worker(name, call.site.options)
    if device is None or not isinstance(worker, ThreadWorker):
        return None
    meter = _meter(worker, device)
    free: int | None = meter.free() if meter is not None else None
    return free if free is not None else device.memory_free


def _choose(call: Call) -> tuple[DeviceChoice, list[Short]]:
    """The device for a call; and those that do not have the memory that such calls took before."""
    planner, chooser = call.planner, call.site.chooser
    choice = chooser.choose(planner.waiting())
    form, rows = call.form
    needed = {name: form.predicted(name, rows) for name in chooser.tracks}
    needed = {name: peak for name, peak in needed.items() if peak is not None and peak >= _MUCH}
    if not needed:
        return choice, []
    short = without_memory(needed, {name: free_bytes(call, name) for name in needed})
    mine = next((each for each in short if each.device == choice.candidate), None)
    if mine is None:
        return choice, short
    without = {each.device for each in short}
    others = [name for name in chooser.tracks if name not in without and chooser.may_run(name)]
    if not others:
        sentence = f"{mine.sentence} No other device has more, so it is tried."
        return choice._replace(sentence=sentence), short
    best = min(others, key=lambda name: chooser.estimate(name) or chooser.expected.get(name, 0.0))
    return DeviceChoice(best, "known", mine.sentence), short


def _no_memory(call: Call, short: Short) -> OutOfMemory:
    """The error for a device that is predicted to lack memory for a call."""
    return OutOfMemory(
        short.device,
        short.needed,
        short.free,
        message=f"{call.site.task} is not run: {short.sentence} Pass fewer rows, or close other programs that use it. "
        f"If that figure is wrong, `anygpu history clear {shlex.quote(call.site.task)}` forgets it.",
    )


def _consider(call: Call) -> None:
    """Find the devices of the task's engine, once; raise `DeviceUnavailable` where there is none."""
    site = call.site
    if site.candidates.evaluated:
        return
    engine = site.options.engine
    machine = call.planner.machine()
    selection = select(machine.devices, site.options.preference)
    able = [device for device in selection.chosen if device.engine == engine]
    refused = [Refused(each.device, each.sentence) for each in selection.refused]
    if not able:
        # The function takes that library's arrays, so there is nowhere to fall back to.
        reasons = [f"{each.reason} {each.fix or ''}".strip() for each in machine.unavailable if each.engine == engine]
        raise DeviceUnavailable(f'engine="{engine}"', reasons or [each.sentence for each in refused])
    site.candidates.consider_engine(able, refused)


def _offer_another(call: Call) -> None:
    """Give a device that was never tried a real call: an opaque task cannot be tried in the background."""
    chooser = call.site.chooser
    name = chooser.to_try()
    if name is not None and chooser.calls >= _BEFORE_ANOTHER:
        best = min(track.estimate for track in chooser.tracks.values() if track.estimate is not None)
        chooser.begin_trial(name)
        chooser.tried(name, best)


def _is_native(value: Any) -> bool:
    """Whether a value is another library's array."""
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic)
