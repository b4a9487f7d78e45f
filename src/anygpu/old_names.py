"""Names that were in `anygpu` itself before 0.1. They stay for one release, with a warning that has the new ones."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from anygpu import errors, types


def moved(name: str) -> Any:
    """The object of that name, from where users are told to look for it. Raises `AttributeError` for other names."""
    if name == "host_operations":
        place = "anygpu.observe"
    elif name in types.__all__:
        place = "anygpu.types"
    elif isinstance(getattr(errors, name, None), type):
        place = "anygpu.errors"
    else:
        raise AttributeError(f"module 'anygpu' has no attribute {name!r}")
    message = f"anygpu.{name} is {place}.{name} now. The old name goes with the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return getattr(importlib.import_module(place), name)
