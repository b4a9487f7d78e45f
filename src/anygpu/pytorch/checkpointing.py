"""Layers that are computed again in the backward pass instead of keeping what they made: which, and how.

`checkpointed` puts torch's own checkpointing around submodules of a module for a while. It computes the same values:
random numbers and autocast are repeated by torch; buffers and plain attributes that a layer changes in its forward pass
are what they were when it is computed again, and change once.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from anygpu.errors import InvalidOption, Unsupported
from anygpu.pytorch.records import LayerCost

#: Containers whose elements are layers; the first two have no forward pass of their own.
_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)
#: A buffer up to this size is copied before a layer runs, in case that the layer changes it. A larger one is watched.
_SMALL = 1 << 20
#: How finely `select` divides bytes.
_UNITS = 4096

_PLAIN = (bool, int, float, str, type(None))


# -- which


def candidates(model: torch.nn.Module) -> tuple[str, ...]:
    """Names of submodules that are worth checkpointing, as in `named_modules`. None of them contains another."""
    if isinstance(model, torch.jit.ScriptModule):
        return ()
    prefix = "_orig_mod." if hasattr(model, "_orig_mod") else ""
    return tuple(_candidates(getattr(model, "_orig_mod", model), prefix, is_root=True))


def _candidates(module: torch.nn.Module, prefix: str, *, is_root: bool = False) -> Iterator[str]:
    name = prefix.removesuffix(".")
    if isinstance(module, torch.nn.RNNBase):
        if not is_root:
            yield name
    elif isinstance(module, torch.jit.ScriptModule):
        return
    elif is_root or isinstance(module, _LISTS) or _has_layers(module):
        for child_name, child in module.named_children():
            yield from _candidates(child, f"{prefix}{child_name}.")
    elif any(True for _ in module.children()):
        yield name


def _has_layers(module: torch.nn.Module) -> bool:
    """Whether it has a container of several layers that are more than one operation each."""
    return any(
        sum(any(True for _ in element.children()) for element in inner.children()) > 1
        for inner in module.modules()
        if isinstance(inner, (*_LISTS, torch.nn.Sequential))
    )


def select(layers: Iterable[LayerCost], excess_bytes: int) -> tuple[str, ...] | None:
    """The layers whose checkpointing lowers the peak by `excess_bytes` for the least time; `None` if none do.

    `layers` stand in the order of their forward passes. While the backward pass of one runs, what it computed again
    is there, and so is what earlier layers have kept; what later ones had kept is gone. Bytes are rounded to 1/4096 of
    all, to the safe side.
    """
    layers = tuple(layers)
    if excess_bytes <= 0:
        return ()
    most = sum(layer.freed_bytes for layer in layers) - excess_bytes
    if most < 0:
        return None
    unit = max(1, math.ceil(most / _UNITS))
    room = most // unit
    # cheapest[k]: the least seconds so that the layers so far keep k units. One row of choices for each layer.
    cheapest = np.full(room + 1, np.inf)
    cheapest[0] = 0.0
    repeated = np.zeros((len(layers), room + 1), bool)
    for index, layer in enumerate(layers):
        kept = math.ceil(layer.freed_bytes / unit)
        again = math.ceil(layer.again_bytes / unit)
        keeping, repeating = np.full_like(cheapest, np.inf), np.full_like(cheapest, np.inf)
        if kept <= room:
            keeping[kept:] = cheapest[: room + 1 - kept]
        if again <= room:
            repeating[: room + 1 - again] = cheapest[: room + 1 - again] + layer.seconds
        repeated[index] = repeating < keeping
        cheapest = np.minimum(keeping, repeating)
    where = int(np.argmin(cheapest))
    if not np.isfinite(cheapest[where]):
        return None
    names = []
    for index in range(len(layers) - 1, -1, -1):
        if repeated[index, where]:
            names.append(layers[index].name)
        else:
            where -= math.ceil(layers[index].freed_bytes / unit)
    return tuple(reversed(names))


# -- how


@contextlib.contextmanager
def checkpointed(model: torch.nn.Module, names: Sequence[str], *, preserve_random_state: bool = True) -> Iterator[None]:
    """Within the block, the named submodules keep only their inputs, and are computed again in the backward pass.

    The module is the same as before when the block ends, however it ends.
    """
    modules = [(name, _submodule(model, name)) for name in names]
    with contextlib.ExitStack() as undo:
        for name, module in modules:
            before = vars(module).get("forward")
            undo.callback(_put_back, module, before)
            vars(module)["forward"] = _Repeated(name, module, module.forward, preserve_random_state)
        yield


def _submodule(model: torch.nn.Module, name: str) -> torch.nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise InvalidOption(
            f"the module has no submodule {name!r} to checkpoint. Take a name from `model.named_modules()`."
        ) from None


def _put_back(module: torch.nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        vars(module).pop("forward", None)
    else:
        vars(module)["forward"] = forward


class _Repeated:
    """A forward pass that is computed again in the backward pass."""

    def __init__(
        self, name: str, module: torch.nn.Module, forward: Callable[..., Any], preserve_random_state: bool
    ) -> None:
        self._name = name
        self._modules = tuple(module.modules())
        self._forward = forward
        self._preserve_random_state = preserve_random_state

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*arguments, **options)
        before = _State(self._modules)
        result = checkpoint(
            # Options are bound, as some of their names are torch's own.
            functools.partial(self._forward, **options),
            *arguments,
            use_reentrant=False,
            preserve_rng_state=self._preserve_random_state,
            context_fn=lambda: (contextlib.nullcontext(), before.again()),
        )
        before.forget_unchanged(self._name)
        return result


class _State:
    """Buffers and plain attributes of modules before a forward pass."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        self._modules = modules
        self._plain = [_plain_attributes(module) for module in modules]
        #: Buffer, its version, and its copy.
        self._buffers: list[dict[str, tuple[torch.Tensor, int, torch.Tensor | None]]] = [
            {
                name: (buffer, buffer._version, buffer.clone() if buffer.nbytes <= _SMALL else None)
                for name, buffer in module._buffers.items()
                if buffer is not None
            }
            if module._buffers and not isinstance(module, _NormBase)
            else {}
            for module in modules
        ]

    def forget_unchanged(self, layer: str) -> None:
        """After the forward pass: keep copies only of what it has changed."""
        for module, buffers in zip(self._modules, self._buffers, strict=True):
            for name in list(buffers):
                buffer, version, copied = buffers[name]
                if module._buffers.get(name) is buffer and buffer._version == version:
                    del buffers[name]
                elif copied is None:
                    raise Unsupported(
                        "checkpointing of layers that change large buffers",
                        "torch",
                        message=f"{layer!r} cannot be checkpointed: its forward pass changes the buffer {name!r}, "
                        "which is too large to be kept twice.",
                        instead='Leave it out of `checkpoint`, or pass `checkpoint="never"`.',
                    )

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Within the block, what the forward pass changed is as it was before it; afterwards, as it was after it."""
        with torch.no_grad():
            after = [(dict(module._buffers), dict(vars(module))) for module in self._modules]
        try:
            for module, buffers, plain in zip(self._modules, self._buffers, self._plain, strict=True):
                for name, buffer in module._buffers.items():
                    if name in buffers:
                        module._buffers[name] = buffers[name][2]
                    elif buffer is not None and isinstance(module, _NormBase):
                        # What a normalisation computes does not depend on what it has gathered, while it gathers.
                        module._buffers[name] = buffer.clone() if module.training else buffer
                vars(module).update(plain)
            yield
        finally:
            for module, (kept_buffers, attributes) in zip(self._modules, after, strict=True):
                module._buffers.clear()
                module._buffers.update(kept_buffers)
                vars(module).clear()
                vars(module).update(attributes)


def _plain_attributes(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}


# -- what they take


@contextlib.contextmanager
def layer_seconds(
    model: torch.nn.Module, names: Sequence[str], *, clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, float]]:
    """Within the block, forward passes of the named submodules are timed; the seconds of each are added up.

    On a card the device is waited for before and after each of them (never run on a card).
    """
    seconds: dict[str, float] = {}
    began: dict[str, list[float]] = {}

    def now(module: torch.nn.Module) -> float:
        device = next((one.device for one in module.parameters()), None)
        if device is not None and device.type == "cuda":
            torch.cuda.synchronize(device)
        return clock()

    def before(name: str, module: torch.nn.Module, *_: Any) -> None:
        began.setdefault(name, []).append(now(module))

    def after(name: str, module: torch.nn.Module, *_: Any) -> None:
        seconds[name] = seconds.get(name, 0.0) + now(module) - began[name].pop()

    modules = [(name, _submodule(model, name)) for name in names]
    with contextlib.ExitStack() as undo:
        for name, module in modules:
            undo.callback(module.register_forward_pre_hook(functools.partial(before, name)).remove)
            undo.callback(module.register_forward_hook(functools.partial(after, name)).remove)
        yield seconds
