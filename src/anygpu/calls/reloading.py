"""IPython's `%autoreload` updates decorated functions in place, wherever they are held, as it does with plain ones."""

from __future__ import annotations

from typing import Any

from anygpu.placement.offload import Offloaded


def follow_reloads(autoreload: Any) -> None:
    """Add a rule to its list of rules, which says for which objects it does that."""
    if all(applies is not _are_offloaded for applies, _ in autoreload.UPDATE_RULES):
        autoreload.UPDATE_RULES.append((_are_offloaded, autoreload.update_function))


def _are_offloaded(old: Any, new: Any) -> bool:
    """Return whether both are decorated functions."""
    return isinstance(old, Offloaded) and isinstance(new, Offloaded)
