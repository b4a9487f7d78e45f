"""Offloaded functions whose calls go to a device at once, compared with NumPy as every one is before that."""

from __future__ import annotations

from typing import Any

from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.placement import explore
from anygpu.placement.call_site import CallSite
from anygpu.placement.device_call import is_ordinary, sample_now
from anygpu.placement.plan.candidate_history import DeviceChoice
from anygpu.placement.planner import Planner


def moved(
    planner: Planner, function: Any, *arguments: Any, device: str = "opencl:0", **given: Any
) -> tuple[Offloaded[..., Any], CallSite]:
    """The function, whose next call with such arguments goes to the device; and what is known of such calls."""
    offloaded: Offloaded[..., Any] = Offloaded(function, options(**given), lambda: planner)
    call = offloaded.call(arguments, {})
    state = call.site
    call.record()
    assert state.programs.current is not None, state.programs.refusal
    call.consider()
    value = function(*arguments)
    state.chooser.measured("numpy", 1.0)
    assert is_ordinary(call, value), state.programs.refusal
    state.candidates.end_calibrating()
    sample = sample_now(call, value)
    assert sample is not None
    explore._try_out(planner, state, function, device, sample)
    assert state.chooser.may_run(device), state.chooser.tracks[device].why_failed
    # However fast NumPy is with so little: only the choice is another one.
    vars(state.chooser)["choose"] = lambda waiting=None: DeviceChoice(device, "known", "a test wants it there.")
    vars(state.chooser)["to_try"] = lambda: None
    return offloaded, state
