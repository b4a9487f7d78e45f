"""Versions of the libraries that engines stand on."""

from __future__ import annotations

import importlib.util
import os
from functools import cache


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution; `None` where it is not installed."""
    from importlib import metadata  # late: it takes as long to load as a call may take to be planned

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def mark_of_llvmlite() -> str | None:
    """By which another llvmlite is noticed: the file in which it has its version and its revision.

    That takes a hundredth of the time of `version_of`, which native code on disk would otherwise wait for.
    """
    found = importlib.util.find_spec("llvmlite")
    if found is None or found.origin is None:
        return None
    try:
        with open(os.path.join(os.path.dirname(found.origin), "_version.py"), encoding="utf-8") as file:
            return file.read()
    except OSError:  # in a frozen application
        return version_of("llvmlite")
