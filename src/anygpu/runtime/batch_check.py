"""A launch of many calls is a program of its own, so it is compared with NumPy before it is used."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from anygpu.array.core.structure import flatten, unflatten
from anygpu.placement.call_site import CallSite
from anygpu.placement.check import pin
from anygpu.placement.comparing import compared
from anygpu.placement.planner import Planner
from anygpu.placement.trust import Sample
from anygpu.runtime.batches import Batch, Batches


class LaunchCheck:
    """Compares one launch: its calls run on NumPy one by one, and after the last the device computes them together."""

    def __init__(
        self, planner: Planner, site: CallSite, function: Callable[..., Any], batches: Batches, batch: Batch
    ) -> None:
        self._planner = planner
        self._state = site
        self._function = function
        self._batches = batches
        self._batch = batch
        #: Copies: callers may write to their arrays as soon as they have their results.
        self._given = [np.array(each) for each in batches.given(batch)]
        self._rows = [[np.array(each) for each in row] for row in batch.rows]
        self._expected: dict[int, Any] = {}
        self._left = batch.taken
        self._lock = threading.Lock()

    def witness(self, number: int, value: Any, succeeded: bool) -> None:
        """Record the value that one call returned on NumPy, before its caller gets it; or that the call failed."""
        if succeeded:
            leaves, structure = flatten(self._batch.traced.without_arguments(value))
            value = unflatten(structure, [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves])
        with self._lock:
            if succeeded:
                self._expected[number] = value
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._planner.background.submit(self._judge)

    def _judge(self) -> None:
        batch, site, planner = self._batch, self._state, self._planner
        with contextlib.suppress(Exception):  # whatever goes wrong here, calls run one by one
            with planner.trying((batch.device,)):
                worker = planner.worker(batch.device, site.options)
                results = self._batches.launch(batch, worker, self._given)
            program = batch.traced.program
            for number, expected in self._expected.items():
                sample = Sample(batch.traced, self._as_program_takes(number), expected, False)
                row = [np.asarray(result[number]) for result in results]
                judgement = compared(sample, row, site.trust.usual.get(program.key, ()))
                if judgement.difference is not None:
                    pin(planner, site, batch.device, self._function, sample, judgement.difference, before_use=True)
                if judgement.verdict != "agree":
                    break
            else:
                if self._expected:
                    self._batches.agreed(batch, worker.generation)
                    return
        self._batches.disagreed(batch)

    def _as_program_takes(self, number: int) -> list[Any]:
        specs = self._batch.traced.program.inputs
        return [np.asarray(each, spec.dtype) for each, spec in zip(self._rows[number], specs, strict=True)]
