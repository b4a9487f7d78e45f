"""What the next process is told of a call site: that native code is faster for it, or that it was tried in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anygpu.history.hints import NATIVE, NUMPY, change_marks, hints_path, mark_of_code

if TYPE_CHECKING:
    from anygpu.placement.native_site import NativeSite


def mark_tried(site: NativeSite) -> None:
    """The next process does not try native code so early, unless it turns out to be faster in this one."""
    _change(site, NUMPY, is_set=True)
    _change(site, NATIVE, is_set=False)


def mark_native(site: NativeSite) -> None:
    """The next process loads what native code needs with the function, and tries it with the first such call."""
    _change(site, NATIVE, is_set=True)


def unmark_tried(site: NativeSite) -> None:
    """What was tried was not in vain."""
    _change(site, NUMPY, is_set=False)


def _change(site: NativeSite, name: str, *, is_set: bool) -> None:
    """Put such calls on a list, with their function, or take them off it."""
    path, code = hints_path(name), site.known.code
    if path is not None and code is not None:
        calls = mark_of_code(code, site.key)
        change_marks(path, [mark_of_code(code), calls] if is_set else [], [] if is_set else [calls])
