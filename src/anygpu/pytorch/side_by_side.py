"""Several modules at once, where that is faster than one after the other.

Both ways are measured on the caller's own calls, and the faster one stays. Side by side is only tried where the results
are known not to depend on the order: the first call runs one after the other, and shows whether the modules draw random
numbers or change tensors that they share. What has been found is kept in this process, for these modules with these
shapes.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from anygpu.base.lru import LRUCache
from anygpu.errors import InvalidOption
from anygpu.pytorch.batches import tensors_of
from anygpu.pytorch.concurrent_calls import (
    SERIAL,
    CallOutcome,
    Concurrency,
    ConcurrencyChoice,
    Crew,
    StreamCrew,
    ThreadCrew,
    Thunk,
    Timings,
    choose,
    common_tensors,
    groups_of,
    not_carried,
    versions,
)
from anygpu.receipts.notes import publish
from anygpu.receipts.receipt import Phases, Receipt

_UNKNOWN = {
    **dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), "torch runs the modules, and it is not counted here"),
    "predicted_seconds": "it is measured, not predicted",
}
_MOST_KEPT = 256


@dataclass(frozen=True, slots=True)
class ParallelResult:
    """The result of `parallel`."""

    #: The outputs of each module, in order.
    outputs: tuple[Any, ...]
    #: Its `reason` says which way was taken, and why.
    receipt: Receipt


def parallel(
    models: Sequence[torch.nn.Module],
    inputs: Sequence[Any],
    keywords: Sequence[Mapping[str, Any]] | None = None,
) -> ParallelResult:
    """Each module called with its inputs: side by side where that is measured to be faster, else one after the other.

    A tuple in `inputs` is a module's positional arguments, anything else its only one; `keywords` has their keyword
    arguments. On the CPU modules run in threads that divide the cores, on CUDA on streams (never run on a card). The
    caller's gradient mode, autocast and context are carried into the threads. The first error is raised when all have
    ended.

    With another number of threads a sum may differ in its last bits. So under deterministic algorithms the modules run
    one after the other, as they do when they draw random numbers or change what they share.
    """
    begin = time.perf_counter()
    how = None
    settled = _settled.get(tuple(map(id, models))) if keywords is None else None
    if settled is not None and settled.is_for(models, inputs) and (known := settled.case.plain_reason()) is not None:
        case, reason = settled.case, known
        began = time.perf_counter()
        outputs = [model(given) for model, given in zip(models, inputs, strict=True)]
        ended = time.perf_counter()
    else:
        calls = _calls(models, inputs, keywords)
        case = _case(models, inputs, keywords)
        found = case.plain_reason()
        if found is not None:
            reason = found
            if keywords is None:
                _settle(case, models, inputs)
            began = time.perf_counter()
            outputs = [call() for call in calls]
            ended = time.perf_counter()
        else:
            outputs, how, reason, began, ended = _Work(case, calls, models, inputs, keywords).run()
    device, kind = case.device
    receipt = Receipt(
        task=f"parallel({len(models)} modules)",
        device=device,
        kind=kind,
        reason=reason,
        phases=Phases(plan=began - begin, run=ended - began),
        how=how,
        unknown=_UNKNOWN,
    )
    publish(receipt)
    return ParallelResult(tuple(outputs), receipt)


def _calls(models: Sequence[Any], inputs: Sequence[Any], keywords: Sequence[Mapping[str, Any]] | None) -> list[Thunk]:
    """One call for each model with its inputs. Raises `InvalidOption` if their numbers differ."""
    if len(models) != len(inputs) or (keywords is not None and len(models) != len(keywords)):
        counts = f"{len(models)} models, {len(inputs)} inputs"
        counts += "" if keywords is None else f", {len(keywords)} keywords"
        raise InvalidOption(f"parallel() needs one entry of inputs for each model, and has {counts}.")
    for number, model in enumerate(models):
        if not isinstance(model, torch.nn.Module):
            raise InvalidOption(
                f"parallel() runs torch modules, and models[{number}] is a {type(model).__name__}: it is not "
                "known what it shares with the others. Wrap it in a torch.nn.Module."
            )
    named: Sequence[Mapping[str, Any]] = keywords if keywords is not None else [{}] * len(models)
    return [
        partial(model, *(given if isinstance(given, tuple) else (given,)), **more)
        for model, given, more in zip(models, inputs, named, strict=True)
    ]


# -- what is known of these modules with these shapes


class _Case:
    """Timings and choice for one list of modules with one kind of inputs."""

    def __init__(self, device: tuple[str, Any]) -> None:
        self.device = device
        self.timings = Timings()
        #: Why they never run side by side; `None` if they may.
        self.refusal: str | None = None
        self._choice: ConcurrencyChoice | None = None
        #: Calls that the choice still holds for.
        self._left = 0

    def plain_reason(self) -> str | None:
        """Why this call runs one after the other without a further look; `None` if it has to be looked at."""
        if self.refusal is not None:
            return self.refusal
        if self._left > 0 and self._choice is not None and self._choice.way == SERIAL:
            self._left -= 1
            return self._choice.reason
        return None

    @property
    def trying(self) -> bool:
        return self._left <= 0

    def next_way(self) -> tuple[Concurrency, str]:
        if self._left > 0 and self._choice is not None:
            self._left -= 1
            return self._choice.way, self._choice.reason
        way = self.timings.next_way()
        return way, f"{way}: both ways are measured, call {self.timings.calls + 1}"

    def refuse(self, why: str) -> None:
        self.refusal = f"{SERIAL}: {why}"

    def seen(self, seconds: float) -> None:
        """A call of a trial."""
        self.timings = self.timings.seen(seconds)
        if self.timings.decided:
            self._choice = choose(self.timings, self._choice)
            self._left = self._choice.holds
            self.timings = Timings()


#: Of this process; the least recently used one is forgotten.
_cases: LRUCache[_Case] = LRUCache(_MOST_KEPT)


def _case(models: Sequence[Any], inputs: Sequence[Any], keywords: Any) -> _Case:
    """What is known of calls like this one.

    Calls are alike with the same modules, modes, shapes, types, devices and number of threads.
    """
    key = (
        tuple([(weakref.ref(model), model.training) for model in models]),
        tuple([(each.shape, each.dtype, each.device) for each in tensors_of((inputs, keywords))]),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_num_threads(),
    )
    return _cases.get(key, lambda: _Case(_device_of(models, inputs)))


class _Settled:
    """Modules that run one after the other for some calls: as little as can be is looked at in each of these.

    That order is always right, so all that a call of another kind could lose by it is speed, until the calls are over.
    """

    def __init__(self, case: _Case, models: Sequence[torch.nn.Module], inputs: Sequence[torch.Tensor]) -> None:
        self.case = case
        self._models = [weakref.ref(model) for model in models]
        self._training = [model.training for model in models]
        self._shapes = [given.shape for given in inputs]
        self._grad = torch.is_grad_enabled()

    def is_for(self, models: Sequence[Any], inputs: Sequence[Any]) -> bool:
        """Whether a call is like the one that was settled, by checks that cost little."""
        if self.case.refusal is not None or len(inputs) != len(models) or torch.is_grad_enabled() != self._grad:
            return False
        if [model.training for model in models] != self._training:
            return False
        for known, model, shape, given in zip(self._models, models, self._shapes, inputs, strict=True):
            if known() is not model or not isinstance(given, torch.Tensor) or given.shape != shape:
                return False
        return True


#: By the ids of the modules.
_settled: dict[tuple[int, ...], _Settled] = {}


def _settle(case: _Case, models: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Keeps a case for calls of the same modules with plain tensors, so that they find it without a key."""
    if case.refusal is None and all(isinstance(given, torch.Tensor) for given in inputs):
        if len(_settled) >= _MOST_KEPT:
            _settled.clear()
        _settled[tuple(map(id, models))] = _Settled(case, models, inputs)


def _device_of(models: Sequence[Any], inputs: Sequence[Any]) -> tuple[str, Any]:
    """The name and kind of the devices that modules and inputs are on."""
    places = _places(models, inputs)
    if places == {torch.device("cpu")} or not places:
        return "torch:cpu", "cpu"
    names = sorted(str(place) for place in places)
    return "torch:" + "+".join(names), "gpu"


def _places(models: Sequence[Any], inputs: Sequence[Any]) -> set[torch.device]:
    """The devices of all inputs, parameters and buffers."""
    found = {tensor.device for tensor in tensors_of(inputs)}
    for model in models:
        found.update(tensor.device for tensor in model.parameters())
        found.update(tensor.device for tensor in model.buffers())
    return found


# -- one call that is measured


class _Work:
    """One call of which it is not settled that it runs one after the other."""

    def __init__(
        self, case: _Case, calls: list[Thunk], models: Sequence[Any], inputs: Sequence[Any], keywords: Any
    ) -> None:
        self._case = case
        self._calls = calls
        self._models = models
        self._given = [(given, named) for given, named in zip(inputs, keywords or [()] * len(inputs), strict=True)]

    def run(self) -> tuple[list[Any], str | None, str, float, float]:
        """The outputs, how, why, and from when to when."""
        entered = time.perf_counter()
        case, calls = self._case, self._calls
        places = _places(self._models, self._given)
        groups = groups_of(self._models)
        why_never = _never(self._models, groups, places)
        if why_never is not None:
            case.refuse(why_never)
        why_not = why_never or _not_now()
        if why_not is not None:
            began = time.perf_counter()
            outputs = [call() for call in calls]
            return outputs, None, f"{SERIAL}: {why_not}", began, time.perf_counter()
        crew: Crew = ThreadCrew() if places <= {torch.device("cpu")} else StreamCrew(next(iter(places)), self._given)
        trying = case.trying
        way, reason = case.next_way()
        if trying:
            crew.wait()
        if way == SERIAL:
            outputs, began, ended = self._watched(groups, crew, trying)
        else:
            began = entered  # looking at what they share is part of it, call by call
            outputs = self._together(groups, crew)
            if trying:
                crew.wait()
            ended = time.perf_counter()
        if trying and case.refusal is None:
            case.seen(ended - began)
        return outputs, None if way == SERIAL else crew.how(groups), reason, began, ended

    def _watched(self, groups: list[list[int]], crew: Crew, trying: bool) -> tuple[list[Any], float, float]:
        """One after the other, with a look at what would depend on the order."""
        common = common_tensors(self._models, self._given, groups)
        before, drawn = versions(common), _random_states(crew)
        began = time.perf_counter()
        outputs = [call() for call in self._calls]
        if trying:
            crew.wait()
        ended = time.perf_counter()
        if before is None:
            self._case.refuse("they share a tensor of the inference mode, which does not count its changes")
        elif versions(common) != before:
            self._case.refuse("they change a tensor that they share")
        elif _random_states(crew) != drawn:
            self._case.refuse("they draw random numbers, which would come in another order side by side")
        return outputs, began, ended

    def _together(self, groups: list[list[int]], crew: Crew) -> list[Any]:
        """Runs the calls side by side; modules that draw random numbers are never run so again."""
        drawn = crew.random_state()
        outcomes = crew.run(self._calls, groups)
        if crew.random_state() != drawn:
            self._case.refuse("they draw random numbers, which come in another order side by side")
        return _values(outcomes)


def _values(outcomes: list[CallOutcome]) -> list[Any]:
    """The values of all calls. Raises the first error that there was."""
    error = next((outcome.error for outcome in outcomes if outcome.error is not None), None)
    if error is not None:
        try:
            raise error
        finally:
            del error, outcomes  # the traceback has this frame
    return [outcome.value for outcome in outcomes]


def _random_states(crew: Crew) -> Any:
    of_numpy = [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state(legacy=True)]
    return crew.random_state(), random.getstate(), of_numpy


def _never(models: Sequence[Any], groups: list[list[int]], places: set[torch.device]) -> str | None:
    """Why these modules never run side by side."""
    if len(models) < 2:
        return "there is only one module"
    if len(groups) < 2:
        return "they have a module in common, or the state of a hook"
    if len(places) > 1:
        return "they are on several devices (" + ", ".join(sorted(map(str, places))) + ")"
    if not places <= {torch.device("cpu")} and next(iter(places)).type != "cuda":
        return f"{next(iter(places)).type} has no streams that modules could run on"
    if places <= {torch.device("cpu")} and torch.get_num_threads() < 2:
        return "torch has one thread here"
    if any(hasattr(part, "_orig_mod") for model in models for part in model.modules()):
        return "one of them is compiled, and torch compiles on one thread at a time"
    return None


def _not_now() -> str | None:
    """Why modules do not run side by side as the caller's thread is now."""
    if torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are asked for, and with fewer threads a sum may differ in its last bits"
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "a hook for all modules is registered"
    return not_carried()
