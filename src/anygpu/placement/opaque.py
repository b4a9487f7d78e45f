"""Opaque tasks: functions over a library's own arrays, which are never looked into. Their cost is known by history."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from anygpu.array.core.array import Array
from anygpu.array.core.plain import require_plain
from anygpu.array.core.structure import flatten, unflatten
from anygpu.errors import DeviceUnavailable, InvalidOption
from anygpu.hardware.selection import select
from anygpu.placement.call import Call
from anygpu.placement.executing import Executing
from anygpu.plan.plan import Plan, Refused
from anygpu.receipts import Attempt, PhaseTimer, Receipt
from anygpu.workers.thread import ThreadWorker

_NOT_LOOKED_INTO = "the function is an opaque task, which is not inspected"

#: Calls on a device before one that was never tried gets a call.
_BEFORE_ANOTHER = 3


def explain_opaque(call: Call) -> Plan:
    """The plan of an opaque task, which only history speaks for."""
    _consider(call)
    choice = call.site.chooser.choose(call.planner.waiting())
    return call.site.plan(choice.sentence, choice.candidate)


def place_opaque(call: Call, timer: PhaseTimer | None = None) -> tuple[Any, Receipt]:
    """Native arrays in and out, on the device of that engine that history speaks for."""
    site, planner, chooser = call.site, call.planner, call.site.chooser
    timer = PhaseTimer(planner.clock) if timer is None else timer
    with timer.phase("plan"):
        _consider(call)
        choice = chooser.choose(planner.waiting())
    device = planner.machine().device(choice.candidate)
    worker = planner.worker(choice.candidate, site.options)
    if device is None or not isinstance(worker, ThreadWorker):
        raise InvalidOption(
            f'{site.task} is an opaque task, and code does not go into another process: use isolation="thread" for '
            f"{choice.candidate}."
        )
    predicted = chooser.estimate(choice.candidate) if chooser.tracks[choice.candidate].recent else None
    leaves, structure = flatten((call.arguments, call.keywords))
    there = back = 0
    with planner.using((choice.candidate,), predicted or 0.0):
        with timer.phase("write"):
            given: list[Any] = []
            for leaf in leaves:
                if isinstance(leaf, np.ndarray | Array):
                    require_plain(leaf, f"{site.task}, a function of {site.options.engine}'s arrays,")
                    values = np.asarray(leaf)
                    there += values.nbytes
                    given.append(worker.native(worker.upload(values)))
                else:
                    given.append(leaf)
            arguments, keywords = unflatten(structure, given)
        with timer.phase("run"):
            try:
                calling = getattr(worker.engine, "calling", None)
                with calling(given) if calling is not None else contextlib.nullcontext(), Executing():
                    value = call.function(*arguments, **keywords)
                worker.engine.synchronize(device)
            except Exception as error:
                # A lack of memory, a lost device: ours. Everything else is the user's own, and stays as it is.
                translated = None
                with contextlib.suppress(Exception):  # a user's error may fail when it is looked at
                    translated = worker.engine.classify(error, device)
                if translated is None:
                    raise
                raise translated from error
        with timer.phase("read"):
            results, shape = flatten(value)
            fetched: list[Any] = []
            for result in results:
                if _is_native(result):
                    values = np.array(worker.download(worker.adopt(result)))
                    back += values.nbytes
                    fetched.append(values)
                else:
                    fetched.append(result)
            value = unflatten(shape, fetched)
    phases = timer.finish()
    took = phases.total - phases.plan
    with planner.lock:
        chooser.measured(choice.candidate, took)
        planner.add_seconds(took)
        _offer_another(call)
    unknown = dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), _NOT_LOOKED_INTO)
    if predicted is None:
        unknown["predicted_seconds"] = (
            "it was the first such call there, and opaque tasks are predicted from history only"
        )
    receipt = Receipt(
        task=site.task,
        device=choice.candidate,
        kind=device.kind,
        reason=choice.sentence,
        phases=phases,
        attempts=(Attempt(device=choice.candidate, phases=phases),),
        bytes_to_device=there,
        bytes_to_host=back,
        predicted_seconds=predicted,
        unknown=unknown,
    )
    return value, receipt


def _consider(call: Call) -> None:
    site = call.site
    if site.evaluated:
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
    site.consider_engine(able, refused)


def _offer_another(call: Call) -> None:
    """An opaque task cannot be tried in the background, so a device that was never tried gets a real call."""
    chooser = call.site.chooser
    name = chooser.to_try()
    if name is not None and chooser.calls >= _BEFORE_ANOTHER:
        best = min(track.estimate for track in chooser.tracks.values() if track.estimate is not None)
        chooser.begin_trial(name)
        chooser.tried(name, best)


def _is_native(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic)
