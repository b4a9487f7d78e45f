"""Compares the chunks of a device with NumPy before it is trusted, and at intervals afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from anygpu.agreement.comparison import judge
from anygpu.base.typing import HostArray
from anygpu.placement.mismatches import keep, mismatch, tell
from anygpu.placement.options import Options
from anygpu.placement.planner import Planner, allows_numpy
from anygpu.placement.trust import code_of
from anygpu.plan.sampling import calls_between_samples
from anygpu.program.graph import Program


class ChunkCheck:
    """Tracks which devices agreed with NumPy, by length of chunk."""

    def __init__(self, planner: Planner, function: Callable[..., Any], task: str, options: Options) -> None:
        self._planner = planner
        self._function = function
        self._task = task
        self._check = options.check
        self._is_automatic = allows_numpy(options)
        #: By device, generation and length: chunks since the last comparison, and the number of comparisons.
        self._agreed: dict[tuple[str, int, int], list[int]] = {}

    @property
    def pinned(self) -> bool:
        """Whether a device was wrong for this function, so that it stays on NumPy."""
        return self._is_automatic and code_of(self._function) in self._planner.pinned

    def is_due(self, device: str, generation: int, length: int, rates: tuple[float | None, float | None]) -> bool:
        """Whether this chunk has to be computed on NumPy too. `rates` are the times of NumPy and the device."""
        if self._check == "always":
            return True
        if self._check == "off" or not self._is_automatic:
            return False
        known = self._agreed.get((device, generation, length))
        if known is None:
            return True
        known[0] += 1
        home, there = rates
        if not home or not there:
            return False
        return known[0] > calls_between_samples(home, there, 0.0, samples=known[1])

    def compare(
        self,
        device: str,
        generation: int,
        piece: Program,
        length: int,
        given: Sequence[Any],
        expected: Sequence[HostArray],
        results: Sequence[HostArray],
    ) -> str | None:
        """`None` if the device agrees, else the reason why it gets no more chunks."""
        inputs = [np.asarray(each) for each in given]
        found = judge(piece, inputs, tuple(expected), [np.asarray(each) for each in results], tuple)
        key = (device, generation, length)
        if found.verdict == "agree":
            before = self._agreed.get(key)
            self._agreed[key] = [0, 0 if before is None else before[1] + 1]
            return None
        if found.difference is None:
            return f"{device} cannot be compared with NumPy: {found.why}."
        facts = self._planner.device(device)
        is_first = key not in self._agreed
        made = mismatch(self._task, device, facts, piece, inputs, found.difference, before_use=is_first)
        if self._planner.disagreed(made, code_of(self._function)):
            keep(made)
            error = tell(made, self._function)
            if error is not None:
                raise error
        return made.reason
