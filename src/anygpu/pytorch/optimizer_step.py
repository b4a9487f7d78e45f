"""The step of an optimiser that runs out of memory: whether it has changed anything, and how it is taken back.

Optimisers create their state when they first need it, and change parameters last. So a step that lacked memory has
often changed nothing that was there before. torch counts the changes of each tensor, which proves it for its own
optimisers. Others may write around that count, and nothing is said for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from anygpu.engines.torch.memory import is_out_of_memory
from anygpu.pytorch.undoing import forget, release


class OptimizerBefore:
    """Parameters and state of an optimiser before its step: which tensors, and how often each was changed."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [
            (parameter, parameter._version) for group in optimizer.param_groups for parameter in group["params"]
        ]
        self._state = {parameter: _marked(values) for parameter, values in optimizer.state.items()}

    def step(self, take: Callable[[], Any], device: torch.device) -> str:
        """Take the step. If memory runs out before anything has changed, once more for one parameter at a time.

        What is to be said of that is returned; the error that ends it is raised.
        """
        try:
            take()
            return ""
        except Exception as error:
            if not is_out_of_memory(error) or not self.undo():
                raise
            forget(error)
        release(device)
        with _one_parameter_at_a_time(self._optimizer):
            take()
        return "the optimizer had not enough memory, had changed nothing, and made its step parameter by parameter"

    @property
    def is_provable(self) -> bool:
        """Whether its changes are counted."""
        return type(self._optimizer).__module__.startswith("torch.optim.")

    def changed(self) -> tuple[int, int]:
        """How many parameters were changed since, and of how many the state that was there before."""
        parameters = sum(parameter._version != version for parameter, version in self._parameters)
        now = self._optimizer.state
        return parameters, sum(
            any(_mark(now.get(parameter, {}).get(name)) != mark for name, mark in before.items())
            for parameter, before in self._state.items()
        )

    def undo(self) -> bool:
        """Drop the state that the step has created. Whether everything is as before then."""
        if not self.is_provable or self.changed() != (0, 0):
            return False
        state = self._optimizer.state
        for parameter in list(state):
            if parameter not in self._state:
                del state[parameter]
                continue
            for name in [name for name in state[parameter] if name not in self._state[parameter]]:
                del state[parameter][name]
        return True

    def sentence(self) -> str:
        """What is known of parameters and state after a step that broke."""
        if not self.is_provable:
            return "parameters may have changed in part: load them from a checkpoint"
        parameters, states = self.changed()
        if not parameters and not states:
            return "parameters and the optimizer's state are as before"
        return (
            f"{parameters} of {len(self._parameters)} parameters and the state of {states} have changed: load the "
            "module and the optimizer from a checkpoint"
        )


@contextmanager
def _one_parameter_at_a_time(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within the block, the optimiser makes no temporary tensors for all parameters at once (`foreach`)."""
    groups = [group for group in optimizer.param_groups if group.get("foreach") is not False and "foreach" in group]
    before = [group["foreach"] for group in groups]
    for group in groups:
        if not group.get("fused"):
            group["foreach"] = False
    try:
        yield
    finally:
        for group, foreach in zip(groups, before, strict=True):
            group["foreach"] = foreach


def _marked(values: Any) -> dict[Any, Any]:
    return {name: _mark(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _mark(value: Any) -> Any:
    return (id(value), value._version) if isinstance(value, torch.Tensor) else value
