"""What follows from comparing what a device computed with what NumPy did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from anygpu.agreement.comparison import Difference
from anygpu.placement.call import Call
from anygpu.placement.call_site import CallSite
from anygpu.placement.comparing import compared, learn_flags
from anygpu.placement.mismatches import Mismatch, keep, mismatch, tell
from anygpu.placement.planner import Planner
from anygpu.placement.strategies import as_arguments
from anygpu.placement.trust import Filters, Sample, code_of, sample_of


def pin(
    planner: Planner,
    site: CallSite,
    device: str,
    function: Callable[..., Any],
    sample: Sample,
    difference: Difference,
    *,
    before_use: bool,
) -> Mismatch:
    """The device was wrong: the function stays on NumPy, and its user is told, once."""
    found = mismatch(
        site.task,
        device,
        planner.device(device.rpartition("+")[2]),
        sample.traced.program,
        sample.inputs,
        difference,
        before_use=before_use,
    )
    planner.recall.disagreed(site, device)
    with planner.lock:
        site.pin(found.reason)
        is_news = planner.disagreed(found, code_of(function))
    if is_news:
        keep(found)
        site.trust.warn_later(tell(found, function))
    return found


def judge_returned(
    planner: Planner, site: CallSite, device: str, function: Callable[..., Any], sample: Sample, results: Sequence[Any]
) -> None:
    """In the background, when NumPy computed again what a device did: learn what it warned of, or that it was wrong."""
    with contextlib.suppress(Exception):  # whatever goes wrong here, the caller has its value
        learn_flags(site.trust, sample)
        judgement = compared(sample, results)
        if judgement.difference is not None:
            pin(planner, site, device, function, sample, judgement.difference, before_use=False)


def hear_numpy(call: Call) -> None:
    """Run the call on NumPy as well, so that it warns or raises; the result of the device that was asked for stays."""
    value = call.site.host.run_on_host(call.function, call.arguments, call.keywords)
    call.site.trust.heard = Filters.now()
    learn_from(call, value)


def learn_from(call: Call, value: Any) -> None:
    """Find out in the background what NumPy warned of in a call that has just run there."""
    site = call.site
    given = call.given()
    if given is None:
        return
    traced = call.traced
    sample = sample_of(traced, as_arguments(given, traced.program, None), value, ours=False)
    call.planner.background.submit(partial(learn_flags, site.trust, sample))


def check_now(call: Call, name: str, results: Sequence[Any], given: Sequence[Any]) -> str | None:
    """Compare this very result with NumPy's. Why NumPy's has to be returned, or `None`."""
    site, traced = call.site, call.traced
    arrays = [np.asarray(each) for each in given]
    expected = None if site.has_anygpu_arrays else site.host.run_on_host(call.function, call.arguments, call.keywords)
    sample = Sample(traced, arrays, traced.without_arguments(expected), site.has_anygpu_arrays)
    judgement = compared(sample, results)
    if judgement.verdict == "agree":
        return None
    if judgement.difference is None:
        return f"{name} cannot be compared with NumPy here: {judgement.why}."
    found = pin(call.planner, site, name, call.function, sample, judgement.difference, before_use=True)
    if site.options.fallback == "raise" and site.chooser.baseline is None:
        raise found.warning()
    return found.reason
