"""Several modules at once, on streams of a CUDA device.

On the CPU, and where results could depend on the order, they run one after the other. The first call of modules always
does, and shows whether they change a tensor that they share.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from anygpu.base.lru import LRUCache
from anygpu.errors import InvalidOption
from anygpu.pytorch.batches import tensors_of
from anygpu.receipts.notes import publish
from anygpu.receipts.receipt import Phases, Receipt

Call = Callable[[], Any]

_UNKNOWN = {
    **dict.fromkeys(("device_seconds", "peak_bytes", "kernels"), "torch runs the modules, and it is not counted here"),
    "predicted_seconds": "torch runs the modules, and it is not predicted",
}


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
    """Call each module with its inputs: on streams of one CUDA device (never run on a card), else one after the other.

    A tuple in `inputs` is a module's positional arguments, anything else its only one; `keywords` has their keyword
    arguments. On the CPU one module uses all cores. Under deterministic algorithms, and when they change what they
    share, modules run one after the other too.
    """
    begin = time.perf_counter()
    calls = _calls(models, inputs, keywords)
    given = list(zip(inputs, keywords or [{}] * len(inputs), strict=True))
    places = {tensor.device for at in range(len(models)) for tensor in _tensors(models[at], given[at])}
    why_in_order = _why_in_order(models, places)
    began = time.perf_counter()
    if why_in_order is None:
        outputs, why_in_order = _on_streams(calls, models, given, next(iter(places)))
    else:
        outputs = [call() for call in calls]
    receipt = Receipt(
        task=f"parallel({len(models)} modules)",
        device="torch:" + ("+".join(sorted(map(str, places))) or "cpu"),
        kind="cpu" if places <= {torch.device("cpu")} else "gpu",
        reason=f"one after the other: {why_in_order}" if why_in_order else "side by side",
        phases=Phases(plan=began - begin, run=time.perf_counter() - began),
        how=None if why_in_order else f"on {len(groups_of(models))} streams",
        unknown=_UNKNOWN,
    )
    publish(receipt)
    return ParallelResult(tuple(outputs), receipt)


def _calls(models: Sequence[Any], inputs: Sequence[Any], keywords: Sequence[Mapping[str, Any]] | None) -> list[Call]:
    """Return one call for each model with its inputs. Raise `InvalidOption` if their numbers differ."""
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
    return [
        partial(model, *(given if isinstance(given, tuple) else (given,)), **named)
        for model, given, named in zip(models, inputs, keywords or [{}] * len(models), strict=True)
    ]


def _tensors(model: torch.nn.Module, given: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers(), *tensors_of(given)]


def groups_of(modules: Sequence[torch.nn.Module]) -> list[list[int]]:
    """Return groups of positions of modules that share a submodule or a hook's state; each group runs in order.

    Hooks that are functions or methods may share state, so all modules with such hooks are one group.
    """
    groups: list[tuple[set[int], list[int]]] = []
    for number, module in enumerate(modules):
        parts = list(module.modules())
        hooks = [hook for part in parts for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())]
        things = {id(part) for part in parts}
        things |= {0 if isinstance(hook, FunctionType | MethodType) else id(hook) for hook in hooks}
        joined = [group for group in groups if group[0] & things]
        groups = [group for group in groups if not group[0] & things]
        members = [member for _, others in joined for member in others]
        groups.append((things.union(*(others for others, _ in joined)), sorted([*members, number])))
    return sorted(members for _, members in groups)


def _why_in_order(models: Sequence[torch.nn.Module], places: set[torch.device]) -> str | None:
    """Return why these modules run one after the other; `None` if they may run on streams."""
    if len(models) < 2:
        return "there is only one module"
    if places <= {torch.device("cpu")}:
        return "on the CPU one module uses all cores"
    if len(places) > 1:
        return "they are on several devices (" + ", ".join(sorted(map(str, places))) + ")"
    if (kind := next(iter(places)).type) != "cuda":
        return f"{kind} has no streams that modules could run on"
    if len(groups_of(models)) < 2:
        return "they have a module in common, or hooks"
    if any(hasattr(part, "_orig_mod") for model in models for part in model.modules()):
        return "one of them is compiled, and CUDA graphs share their memory"
    if torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are asked for, and products on several streams may differ in their last bits"
    hooks = torch.nn.modules.module
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
        return "a hook for all modules is registered"
    return None


class _Known:
    """What the first call of modules with inputs of some shapes has shown."""

    is_called = False
    why_in_order: str | None = None


#: Of this process; the least recently used one is forgotten.
_known: LRUCache[_Known] = LRUCache(256)


def _on_streams(
    calls: list[Call], models: Sequence[torch.nn.Module], given: list[Any], device: torch.device
) -> tuple[list[Any], str | None]:
    """Return the outputs, and why they were computed one after the other, as at the first time; `None` if not."""
    key = (
        tuple((weakref.ref(model), model.training) for model in models),
        tuple((tensor.shape, tensor.dtype) for tensor in tensors_of(given)),
    )
    known, groups = _known.get(key, _Known), groups_of(models)
    if known.is_called and known.why_in_order is None:
        return run_on_streams(calls, groups, given, device), None
    shared = _shared_tensors(models, given, groups)
    before = _versions(shared)
    outputs = [call() for call in calls]
    if before is None:
        known.why_in_order = "they share a tensor of the inference mode, which does not count its changes"
    elif _versions(shared) != before:
        known.why_in_order = "they change a tensor that they share"
    reason = known.why_in_order or "the first call shows whether they change what they share"
    known.is_called = True
    return outputs, reason


def _shared_tensors(
    models: Sequence[torch.nn.Module], given: Sequence[Any], groups: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Return the tensors whose memory more than one group can reach."""
    first: dict[int, int] = {}
    shared = []
    for number, group in enumerate(groups):
        for tensor in (tensor for at in group for tensor in _tensors(models[at], given[at])):
            try:
                place = tensor.untyped_storage().data_ptr()
            except (RuntimeError, NotImplementedError):  # a sparse one has no storage
                place = id(tensor)
            if place and first.setdefault(place, number) != number:
                shared.append(tensor)
    return shared


def _versions(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """Return how often each was changed in place; `None` if one does not count it."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return None


def run_on_streams(
    calls: Sequence[Call],
    groups: Sequence[Sequence[int]],
    given: Sequence[Any],
    device: torch.device,
    cuda: Any = torch.cuda,
) -> list[Any]:
    """Call each on its group's stream, for which the caller's stream waits. Never run on a card.

    The host calls in order, so random numbers are those of calls one after the other. Inputs are marked as used on
    their stream, and results as used on the caller's, before their memory can be freed.
    """
    callers, outputs = cuda.current_stream(device), []
    streams = [cuda.Stream(device) for _ in groups]
    stream_of = {at: stream for group, stream in zip(groups, streams, strict=True) for at in group}
    try:
        for stream in streams:
            stream.wait_stream(callers)
        for at, call in enumerate(calls):
            with cuda.stream(stream_of[at]):
                _record(given[at], stream_of[at])
                outputs.append(call())
    finally:
        for stream in streams:
            callers.wait_stream(stream)
    _record(outputs, callers)
    return outputs


def _record(batch: Any, stream: Any) -> None:
    for tensor in tensors_of(batch):
        if tensor.is_cuda:
            tensor.record_stream(stream)
