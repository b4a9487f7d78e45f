"""What a workload is, and how its arguments are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from anygpu.base.typing import HostArray

Function = Callable[..., Any]
Make = Callable[[int, np.random.Generator], tuple[HostArray, ...]]

#: How many elements a call gets, about.
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and what it is called with at any size."""

    name: str
    #: What a call does, one after the other: each takes what the one before gave. Most workloads have one stage.
    stages: tuple[Function, ...]
    #: Arguments of about so many elements in all.
    make: Make
    #: The largest size that is measured, and why there is an end; 0 and empty when there is none.
    largest: int = 0
    why_largest: str = ""
    #: Whether the program grows with the size, because the function loops over elements in Python.
    grows: bool = False

    def __str__(self) -> str:
        return self.name

    def function(self, *arguments: Any) -> Any:
        """All stages, as plain Python calls them."""
        first, *others = self.stages
        value = first(*arguments)
        for stage in others:
            value = stage(value)
        return value

    def left_out(self, size: int) -> str | None:
        """Why a size is not measured; `None` when it is."""
        return self.why_largest if self.largest and size > self.largest else None


def normal(rng: np.random.Generator, *shape: int) -> HostArray:
    return rng.standard_normal(shape, np.float32)


def rows_of(size: int, width: int) -> tuple[int, int]:
    """Rows and columns of a matrix of about so many elements, its rows no longer than `width`."""
    columns = max(2, min(width, math.isqrt(size)))
    return max(1, round(size / columns)), columns


def side_of(size: int, matrices: int = 1) -> int:
    """The side of so many square matrices, which have `size` elements together."""
    return max(2, round(math.sqrt(size / matrices)))
