"""`explain` for deferred calls: what they and plain calls take, and their segments with why each ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from anygpu.base.units import readable_seconds
from anygpu.placement.segments import Segment, Segments
from anygpu.plan.plan import Candidate, Plan

if TYPE_CHECKING:
    from anygpu.placement.deferred import DeferredSite
    from anygpu.receipts import Receipt

_NEW = "the function itself runs, and its arrays wait; it was not called with such arguments yet."


def explain_deferred(task: str, site: DeferredSite | None, segments: Segments, last: Receipt | None) -> Plan:
    """The plan of the next deferred call; `last` is the receipt of the last one."""
    candidates = []
    if site is not None and math.isfinite(site.plain):
        sentence = "plain calls of the function, of which one is made every so often."
        candidates.append(Candidate(device="numpy", seconds=site.plain, basis="measured", sentence=sentence))
    chosen, reason = "numpy", _NEW
    if last is not None:
        chosen, reason = last.device, last.reason
    if site is not None and site.recent and chosen == "cpu":
        sentence = f"deferred calls: {readable_seconds(min(site.recent))} at best of the last ones."
        candidates.append(Candidate(device="cpu", seconds=min(site.recent), basis="measured", sentence=sentence))
    candidates.sort(key=lambda each: each.seconds)
    ended = [] if last is None or last.how is None else [f"the last call: {last.how}"]
    shown = "\n".join([*ended, *(_line(number, each) for number, each in enumerate(segments))])
    return Plan(
        task=task,
        chosen=chosen,
        reason=reason,
        candidates=tuple(candidates),
        not_recorded="a deferred call runs the function itself; its segments are programs",
        nests=shown or None,
    )


def _line(number: int, segment: Segment) -> str:
    """What is known of one segment."""
    site = segment.site
    head = f"segment {number}: {segment.calls} operations, {segment.count} times"
    if site is None:
        return f"{head}, on numpy"
    if site.runs:
        note = getattr(site.direct, "note", None)
        return f"{head}, {site.runs} as native code" + (f": {note.reason}" if note is not None else "")
    return f"{head}, on numpy: {site.note.reason}"
