"""Arrays: lazy, and ordinary to use. What is done with them becomes a program, computed when a value is needed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn


class _Package(ModuleType):
    """Who comes from NumPy types `ag.array([1, 2])` first, and must not be told that a module is not callable."""

    def __call__(self, *arguments: Any, **options: Any) -> NoReturn:
        raise TypeError("anygpu.array is a part of the package. Make arrays with anygpu.asarray(...).")


sys.modules[__name__].__class__ = _Package
