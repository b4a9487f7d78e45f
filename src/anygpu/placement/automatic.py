"""Functions that cannot be traced are deferred by themselves where their code shows that it is safe.

When a trace has failed and calls have taken long enough, what is needed is loaded and the code of the function is
looked at, both beside the calls (see `automatic_deferral`). `ANYGPU_DEFER=off` turns that off.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from anygpu.placement import loading
from anygpu.placement.native_calls import Called, background, on_numpy
from anygpu.placement.native_loading import begin_segments, mark_native, mark_tried, unmark_tried
from anygpu.placement.native_site import NativeSite
from anygpu.placement.options import DEVICE

#: Calls that take less are not deferred by themselves: the first deferred call takes some ten milliseconds more, and
#: each segment of later ones some fifty microseconds beside NumPy.
LEAST_TO_DEFER = 5e-3
#: What the calls of a site have taken before its code is looked at.
BEFORE_LOOKING = 1.0


def defer_if_closed(site: NativeSite, why: str) -> None:
    """Once calls of a function that cannot be traced have taken long, find out whether they can be deferred."""
    if type(site) is not NativeSite or site.known.options.deferred or os.environ.get(DEVICE):
        return
    if site.is_marked:  # in an earlier process its calls were faster deferred
        background.submit(partial(remember, site))
        begin_segments(soon=True)
    site.try_later(Trial(site, why), 0.0 if site.is_marked else BEFORE_LOOKING)


def remember(site: NativeSite) -> None:
    """Have the next process look at the code with the first of such calls: deferred ones are faster."""
    mark_native(site)
    unmark_tried(site)


def forget(site: NativeSite) -> None:
    """Take that back, if an earlier process has found it."""
    if site.is_marked:
        background.submit(partial(mark_tried, site))


class Trial:
    """The calls of such a site, which run as they are until its code was looked at beside them."""

    def __init__(self, site: NativeSite, why: str) -> None:
        self._site, self._why = site, why

    def __call__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any], begin: float
    ) -> Any:
        site = self._site
        if site.least < LEAST_TO_DEFER:
            forget(site)
            site.stay(self._why)
        elif not loading.segments.is_ready:
            begin_segments(soon=False)
        elif not loading.segments.is_under_way():
            from anygpu.placement.automatic_deferral import look  # it was loaded beside the calls

            site.wait()
            background.submit(partial(look, site, function, self._why))
        return on_numpy(site, Called(function, arguments, keywords, begin))
