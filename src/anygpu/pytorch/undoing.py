"""Undoes the changes of a step that ran out of memory: random states, buffers, gradients, the optimiser's step.

Each class takes note of one kind of state before the step and puts it back. Errors are stripped of their frames
(`forget`), because those keep the tensors of the failed attempt alive.
"""

from __future__ import annotations

import gc
import random
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch

from anygpu.engines.torch.engine import is_out_of_memory
from anygpu.errors import name_of, text_of

#: Buffers that are larger, and that no step has changed so far, are tables and masks: they are not copied each time.
_LARGE = 1 << 16

RandomState = tuple[torch.Tensor, torch.Tensor | None]


def random_state(device: torch.device) -> RandomState:
    """The random state of the CPU, and of `device` if it is CUDA (never run on a card)."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Sets the generators back to a state of `random_state`."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


def host_random_state() -> tuple[Any, Any]:
    """The random state of Python's own generator, and of NumPy's global one if NumPy has been loaded."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), None if numpy is None else numpy.random.get_state()


def set_host_random_state(state: tuple[Any, Any]) -> None:
    """Sets Python's and NumPy's global generators back to a state of `host_random_state`."""
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])


class Buffers:
    """The buffers of a module as they were when `keep` was called.

    Copies are made into the same memory at each step. Large buffers that a step has left alone are taken for constant,
    until the module changes between training and evaluation.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._modules = list(model.modules())
        #: Where a buffer is, the tensor that was there, and a copy of its values.
        self._kept: list[tuple[dict[str, Any], str, torch.Tensor, torch.Tensor]] = []
        self._modes: tuple[bool, ...] = ()
        #: Large ones that no step has changed.
        self._constant: set[torch.Tensor] = set()

    def keep(self) -> None:
        """Copies the buffers that may change; `restore` goes back to this."""
        found = self._places()
        if [(id(place), name, id(tensor)) for place, name, tensor in found] != [
            (id(place), name, id(tensor)) for place, name, tensor, _ in self._kept
        ]:
            self._kept = [(place, name, tensor, tensor.detach().clone()) for place, name, tensor in found]
        elif self._kept:
            with torch.no_grad():
                torch._foreach_copy_([copy for *_, copy in self._kept], [tensor for _, _, tensor, _ in self._kept])

    def _places(self) -> list[tuple[dict[str, Any], str, torch.Tensor]]:
        """The dictionary, the name and the tensor of each buffer that is not known to be constant."""
        modes = tuple([module.training for module in self._modules])
        if modes != self._modes:
            # What is constant while a module evaluates may change while it trains.
            self._modes, self._constant = modes, set()
        return [
            (module._buffers, name, tensor)
            for module in self._modules
            if module._buffers
            for name, tensor in module._buffers.items()
            if tensor is not None and tensor not in self._constant
        ]

    def ran(self) -> None:
        """A step has run since `keep`: large buffers that it left alone are not copied again."""
        for place, name, tensor, values in self._kept:
            if tensor.nbytes > _LARGE and place.get(name) is tensor and torch.equal(tensor, values):
                self._constant.add(tensor)

    def restore(self) -> None:
        """Puts the tensors back in their places, with the values that they had at `keep`."""
        with torch.no_grad():
            for place, name, tensor, values in self._kept:
                place[name] = tensor
                tensor.copy_(values)

    def now(self) -> list[torch.Tensor]:
        """Copies of the values that the kept buffers have now, in the order of `names`."""
        return [place[name].detach().clone() for place, name, *_ in self._kept]

    def names(self) -> list[str]:
        """The names of the kept buffers, as `named_buffers` has them."""
        owners = {id(module._buffers): path for path, module in self._model.named_modules()}
        return [f"{owners.get(id(place), '')}.{name}".lstrip(".") for place, name, *_ in self._kept]


class Gradients:
    """The gradients of a module's parameters, set aside while those of a batch are computed.

    Nothing is copied: `grad` becomes `None`, and the tensor is kept here until `give_back` or `add_back`.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters: Sequence[torch.nn.Parameter] = list(dict.fromkeys(parameters))
        self._aside: list[torch.Tensor | None] = []

    def set_aside(self, dropped: Set[torch.nn.Parameter]) -> None:
        """Gradients of those in `dropped` are no longer wanted, and their memory is free for the step."""
        self._aside = []
        if len(dropped) < len(self.parameters):
            aside = [None if each in dropped else each.grad for each in self.parameters]
            self._aside = aside if any(each is not None for each in aside) else []
        self.drop()

    def drop(self) -> None:
        """Sets all gradients to `None`, such as those that a broken attempt has left."""
        for parameter in self.parameters:
            parameter.grad = None

    def give_back(self) -> None:
        """Sets the gradients to those from before, whatever a broken step has left."""
        self.drop()
        for parameter, before in zip(self.parameters, self._aside, strict=False):
            parameter.grad = before
        self._aside = []

    def add_back(self) -> None:
        """Adds the gradients from before to those of the batch, which are complete."""
        for parameter, before in zip(self.parameters, self._aside, strict=False):
            if before is None:
                continue
            if parameter.grad is None:
                parameter.grad = before
            else:
                parameter.grad.add_(before)
        self._aside = []


@contextmanager
def without_gradients(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """A block that may run backward through some of the parameters, and leaves their gradients as they were.

    Inside, each begins with no gradient.
    """
    before = [each.grad for each in parameters]
    for each in parameters:
        each.grad = None
    try:
        yield
    finally:
        for each, gradient in zip(parameters, before, strict=True):
            each.grad = gradient


def forget(error: BaseException | None) -> None:
    """Clears the frames of an error, of its cause and of its context, which keep activations alive.

    The traceback is gone afterwards; take from the error what is to be told before.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
        waiting += [each.__cause__, each.__context__]


def brief(error: BaseException) -> str:
    """The name of an error, and the beginning of its first line where the name does not say it."""
    lines = text_of(error).strip().splitlines()
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or not lines:
        return name_of(error)
    return f"{name_of(error)}: {lines[0][:100]}"


def release(device: torch.device) -> None:
    """Collects garbage, and gives unused cached memory of a CUDA device back to its driver."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# -- the step of an optimiser that runs out of memory: whether it has changed anything, and how it is taken back
#
# Optimisers create their state when they first need it, and change parameters last. So a step that lacked memory has
# often changed nothing that was there before. torch counts the changes of each tensor, which proves it for its own
# optimisers. Others may write around that count, and nothing is said for them.


class OptimizerBefore:
    """Parameters and state of an optimiser before its step: which tensors, and how often each was changed.

    The changes are torch's own version counters; only optimisers of `torch.optim` are known to be counted by them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = [
            (parameter, parameter._version) for group in optimizer.param_groups for parameter in group["params"]
        ]
        self._state = {parameter: _marked(values) for parameter, values in optimizer.state.items()}

    def step(self, take: Callable[[], Any], device: torch.device) -> str:
        """Takes the step. If memory runs out before anything has changed, once more for one parameter at a time.

        Returns a sentence about that for the receipt, empty if the first attempt was enough. Any other error is raised.
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
        """Drops the state that the step has created, and returns whether everything is as before then.

        `False` without a change if parameters or state were changed, or if that cannot be proved.
        """
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
        """A sentence about the parameters and the state after a step that broke."""
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
    """The marks of an optimiser's state of one parameter, by name."""
    return {name: _mark(value) for name, value in values.items()} if isinstance(values, dict) else {}


def _mark(value: Any) -> Any:
    """Something that changes when the value does: identity and version of a tensor, any other value itself."""
    return (id(value), value._version) if isinstance(value, torch.Tensor) else value
