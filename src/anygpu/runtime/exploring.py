"""Finding out whether a call would be faster elsewhere, in the background, while calls go on where they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from anygpu.errors import AnyGPUError, name_of, text_of
from anygpu.plan.choosing import DOUBT, Cell
from anygpu.runtime.call import Call
from anygpu.runtime.planner import Planner
from anygpu.runtime.state import State, lacking
from anygpu.runtime.values import as_arguments
from anygpu.runtime.ways import carry_out
from anygpu.workers.opening import default_budget

#: Copying the arguments for a trial.
_COPIED_PER_SECOND = 4e9
#: Runs of a trial: the first compiles and fills caches, the best of the others counts.
_RUNS = 3
#: A trial that takes longer than this is not repeated.
_LONG = 0.5
#: For so many calls nothing is asked when there is nothing to ask, and when the function is shorter than any device.
_QUIET, _VERY_QUIET = 64, 1024
#: Calibrating keeps so much on the device. Under a smaller budget it would take the room of the calls that go on.
_CALIBRATION_BYTES = 256 << 20
#: While something is going on in the background, a look for its end costs about this, and may cost a twentieth.
_LOOK = 6e-5 * 20


def explore(call: Call) -> None:
    """After a call: start a trial if there is something to try and it may cost what it costs."""
    planner, state, cell = call.planner, call.state, call.state.cell
    if state.traced is None or not state.considered:
        planner.wake()
        state.be_quiet(_quiet_calls(call))
        return
    if not state.refined:
        if not state.refining:
            state.refining = True
            planner.background.submit(partial(_refine, planner, state))
        if cell.home == "numpy":
            state.be_quiet(_calls_in(cell, _LOOK))
        return
    with planner.lock:
        name = cell.to_try()
        if name is None:
            _be_quiet_at_home(state, _calls_in(cell, _LOOK) if cell.trying else cell.next_look - cell.calls)
            return
    _start_trial(call, name)


def _start_trial(call: Call, name: str) -> None:
    planner, state, cell = call.planner, call.state, call.state.cell
    devices = state.facts[name].way.devices
    machine = planner.machine()
    if not all(planner.opening_is_worth_it(found) for each in devices if (found := machine.device(each))):
        with planner.lock:
            _be_quiet_at_home(state, _QUIET // 4)
        return
    bytes_in = sum(spec.nbytes for spec in state.program.inputs)
    cost = bytes_in / _COPIED_PER_SECOND
    if state.ours and cell.home is not None:
        cost += planner.reading(cell.home, bytes_in)
    if cell.home is not None and not cell.affords(cost):
        with planner.lock:
            _be_quiet_at_home(state, cell.calls_until_affordable(cost))
        return
    begin = planner.clock()
    copies = _copied(call)
    with planner.lock:
        cell.spend(planner.clock() - begin)
        cell.begin_trial(name)
    planner.background.submit(partial(_try_out, planner, state, name, copies))


def _be_quiet_at_home(state: State, calls: int) -> None:
    """Nothing has to be asked for so many calls, if they go home anyway."""
    if state.cell.home == "numpy" and state.cell.choose().candidate == "numpy":
        state.be_quiet(min(calls, _QUIET))


def _quiet_calls(call: Call) -> int:
    """How many calls may go by before recording could be affordable, or devices be known."""
    cell, planner = call.state.cell, call.planner
    if cell.home != "numpy" or (call.state.ours and call.state.traced is None):
        # Before it is recorded, a function of anygpu's own arrays may write to them.
        return 0
    if call.state.not_recorded is not None:
        return _VERY_QUIET
    seconds = cell.estimate("numpy") or 0.0
    if seconds <= planner.floor:
        return _VERY_QUIET
    if not planner.awake:
        return _calls_in(cell, max(_LOOK, planner.until_worth_looking))
    if call.state.traced is not None:
        return 0
    cost = call.state.recording
    return 0 if cell.affords(cost) else min(_QUIET, cell.calls_until_affordable(cost))


def _calls_in(cell: Cell, seconds: float) -> int:
    """How many calls at home fit into so many seconds."""
    each = cell.estimate(cell.home) if cell.home is not None else None
    return min(_QUIET, int(seconds / each)) if each else 0


def _copied(call: Call) -> list[Any]:
    """The program's inputs as they are now: the caller may write to its arrays before the trial has begun."""
    traced = call.state.traced
    assert traced is not None
    values = traced.inputs(call.arguments, call.keywords)
    return [np.array(each) for each in as_arguments(values, traced.program, None)]


def _refine(planner: Planner, state: State) -> None:
    """Calibrate what may take part, and look at two devices together."""
    try:
        machine = planner.machine()
        for name in list(state.facts):
            device = machine.device(name)
            if device is None or planner.calibration(device).source == "measured":
                continue
            if (budget := default_budget()) is not None and budget < _CALIBRATION_BYTES:
                continue
            if planner.background.closed:
                return
            if planner.opening_is_worth_it(device):
                with planner.trying((name,)):
                    planner.calibrate(device)
        with planner.lock:
            state.consider(planner)
        state.consider_parts(planner)
    except AnyGPUError:
        # A device that cannot be calibrated is found out by its trial.
        pass
    finally:
        state.refining, state.refined = False, True


def _try_out(planner: Planner, state: State, name: str, values: Sequence[Any]) -> None:
    cell = state.cell
    facts = state.facts.get(name)
    if facts is None:
        return
    devices = facts.way.devices
    find = planner.worker_of(state.options)
    try:
        with planner.trying(devices):
            for device in devices:
                lack = lacking(planner, device, state.program, state.options) if device != "numpy" else None
                if lack is not None:
                    with planner.lock:
                        cell.failed(name, lack)
                    return
            best = float("inf")
            for number in range(_RUNS):
                if planner.background.closed:
                    return
                begin = planner.clock()
                carry_out(facts.way, state.program, values, find, timeout=state.options.timeout)
                seconds = planner.clock() - begin
                if number:
                    best = min(best, seconds)
                    if seconds > _LONG or seconds > DOUBT * 2 * (cell.estimate(cell.home or name) or seconds):
                        break
        with planner.lock:
            cell.tried(name, best)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here, the caller's calls go on
        with planner.lock:
            cell.failed(name, f"{name} failed in a trial: {name_of(error)}: {text_of(error)}")
