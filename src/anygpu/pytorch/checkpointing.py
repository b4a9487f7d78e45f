"""Layers that are computed again in the backward pass instead of keeping what they made: which, and how.

`checkpointed` puts torch's own checkpointing around submodules of a module for a while. It computes the same values:
random numbers and autocast are repeated by torch; buffers and plain attributes that a layer changes in its forward pass
are what they were when it is computed again, and change once.

A layer is a submodule, by its name. In an `nn.Sequential` of single operations it is a *segment* of them: `body.2:5`
are the children 2, 3 and 4 of `body`, and `2:5` those of the module itself.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from anygpu.errors import InvalidOption, Unsupported
from anygpu.pytorch.step_plans import LayerCost

#: Containers whose elements are layers; the first two have no forward pass of their own.
_LISTS = (torch.nn.ModuleList, torch.nn.ModuleDict)
#: A buffer up to this size is copied before a layer runs, in case that the layer changes it. A larger one is watched.
_SMALL = 1 << 20
#: Operations in a row in an `nn.Sequential` from which on they are divided into segments.
_SHORTEST_RUN = 4
#: How finely `select` divides bytes.
_UNITS = 4096

_PLAIN = (bool, int, float, str, type(None))


# -- which


def candidates(model: torch.nn.Module) -> tuple[str, ...]:
    """Names of submodules and segments that are worth checkpointing. None of them contains another."""
    if isinstance(model, torch.jit.ScriptModule) or is_compiled(model):
        return ()
    return tuple(_candidates(model, "", is_root=True))


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether torch.compile made it: which activations such a module keeps is its compiler's business."""
    return hasattr(model, "_orig_mod")


def _candidates(module: torch.nn.Module, prefix: str, *, is_root: bool = False) -> Iterator[str]:
    """The names of submodules that may be checkpointed: those that are called once and as a whole."""
    name = prefix.removesuffix(".")
    if isinstance(module, torch.nn.RNNBase):
        if not is_root:
            yield name
    elif isinstance(module, torch.jit.ScriptModule) or is_compiled(module):
        return
    elif is_root or isinstance(module, _LISTS) or _has_layers(module) or _is_long(module):
        alone: list[int] = []  # neighbours that are one operation each
        for place, (child_name, child) in enumerate(module._modules.items()):
            if child is None:
                continue
            found = list(_candidates(child, f"{prefix}{child_name}."))
            if _is_plain_sequential(module) and not found and next(child.children(), None) is None:
                alone.append(place)
                continue
            yield from _segments(module, prefix, alone)
            yield from found
            alone = []
        yield from _segments(module, prefix, alone)
    elif any(True for _ in module.children()):
        yield name


def _is_plain_sequential(module: torch.nn.Module) -> bool:
    """Whether a module runs its children one after the other, and nothing else."""
    return isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward


def _is_long(module: torch.nn.Module) -> bool:
    """Whether it is better divided than recomputed as one."""
    return _is_plain_sequential(module) and sum(1 for _ in module.children()) > 2 * _SHORTEST_RUN


def _segments(module: torch.nn.Module, prefix: str, places: Sequence[int]) -> Iterator[str]:
    """Cut so many operations in a row into segments: about as many operations in each as there are segments.

    No segment begins with an operation that changes its input in place: that could not be computed again.
    """
    if len(places) < _SHORTEST_RUN:
        return
    children = list(module._modules.values())
    if len({id(children[place]) for place in places}) < len(places):
        return  # one that comes twice belongs to two segments
    length = round(math.sqrt(len(places)))
    begin, end = places[0], places[-1] + 1
    cuts = [place for place in range(begin, end, length) if not getattr(children[place], "inplace", False)]
    for first, after in itertools.pairwise([*cuts, end]):
        yield f"{prefix}{first}:{after}"


def _has_layers(module: torch.nn.Module) -> bool:
    """Whether it has a container of several layers that are more than one operation each.

    Then its layers are worth checkpointing, and not the module as a whole.
    """
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

    The module is the same as before when the block ends, however it ends. Raises `InvalidOption` for a name that it
    lacks, and inside the block `Unsupported` for a layer that changes its input or a large buffer.
    """
    layers = [(name, layer_of(model, name)) for name in names]
    segments: dict[torch.nn.Sequential, dict[int, tuple[int, _Repeated]]] = {}
    with contextlib.ExitStack() as undo:
        for name, layer in layers:
            if layer.owner is None:
                module = layer.modules[0]
                forward = _Repeated(name, tuple(module.modules()), module.forward, preserve_random_state)
                _replace_forward(undo, module, forward)
            else:
                inner = tuple(part for module in layer.modules for part in module.modules())
                repeated = _Repeated(name, inner, functools.partial(_in_order, layer.modules), preserve_random_state)
                segments.setdefault(layer.owner, {})[layer.begin] = (layer.begin + len(layer.modules), repeated)
        for owner, of_owner in segments.items():
            _replace_forward(undo, owner, functools.partial(_in_segments, list(owner), of_owner))
        yield


class Layer(NamedTuple):
    """A submodule, or those of a segment in their order."""

    modules: tuple[torch.nn.Module, ...]
    #: The `nn.Sequential` that a segment is of, and the place of its first child there.
    owner: torch.nn.Sequential | None = None
    begin: int = 0


def layer_of(model: torch.nn.Module, name: str) -> Layer:
    """The layer of that name. Raises `InvalidOption` where there is none."""
    path, _, last = name.rpartition(".")
    with contextlib.suppress(AttributeError):
        if ":" not in last:
            return Layer((model.get_submodule(name),))
        begin, _, end = last.partition(":")
        owner = model.get_submodule(path)
        if begin.isdecimal() and end.isdecimal() and isinstance(owner, torch.nn.Sequential):
            children = tuple(owner)[int(begin) : int(end)] if _is_plain_sequential(owner) else ()
            if len(children) == int(end) - int(begin) > 0:
                return Layer(children, owner, int(begin))
    raise InvalidOption(
        f"the module has no submodule {name!r} to checkpoint. Take a name from `model.named_modules()`, or such as "
        "'body.2:5' for the children 2, 3 and 4 of an nn.Sequential 'body'."
    )


def first_overlap(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of the names that cannot both be checkpointed: segments of one `nn.Sequential` that have children in common,
    or a segment and its whole `nn.Sequential`.
    """
    whole, segments = set[str](), list[tuple[str, int, int, str]]()
    for name in dict.fromkeys(names):
        path, _, last = name.rpartition(".")
        first, divided, after = last.partition(":")
        if divided:
            segments.append((path, int(first), int(after), name))
        else:
            whole.add(name)
    segments.sort()
    for path, _, _, name in segments:
        if path in whole:
            return path, name
    for (path, _, end, name), (next_path, begin, _, next_name) in itertools.pairwise(segments):
        if path == next_path and begin < end:
            return name, next_name
    return None


def _in_order(modules: Sequence[torch.nn.Module], value: Any) -> Any:
    """The value after all modules, one after the other."""
    for module in modules:
        value = module(value)
    return value


def _in_segments(
    children: Sequence[torch.nn.Module], segments: Mapping[int, tuple[int, Callable[[Any], Any]]], input: Any
) -> Any:
    """The forward pass of an `nn.Sequential`, whose argument has that name."""
    place = 0
    while place < len(children):
        end, call = segments.get(place, (place + 1, children[place]))
        input, place = call(input), end
    return input


def _replace_forward(undo: contextlib.ExitStack, module: torch.nn.Module, forward: Callable[..., Any]) -> None:
    """Replaces the forward pass of one module, not of its class; `undo` puts it back."""
    undo.callback(_put_back, module, vars(module).get("forward"))
    vars(module)["forward"] = forward


def _put_back(module: torch.nn.Module, forward: Callable[..., Any] | None) -> None:
    """Restores a module's own `forward`, or removes the attribute so that the class's is used again."""
    if forward is None:
        vars(module).pop("forward", None)
    else:
        vars(module)["forward"] = forward


class _Repeated:
    """A forward pass that is computed again in the backward pass.

    Before that, the buffers and plain attributes of its modules are put back for the time of the computation.
    """

    def __init__(
        self,
        name: str,
        modules: tuple[torch.nn.Module, ...],
        forward: Callable[..., Any],
        preserve_random_state: bool,
    ) -> None:
        self._name = name
        self._modules = modules
        self._forward = forward
        self._preserve_random_state = preserve_random_state

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Run the submodule; with gradients, drop its activations and compute them again in the backward pass."""
        if not torch.is_grad_enabled():
            return self._forward(*arguments, **options)
        before = _State(self._modules)
        given = [each for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor)]
        versions = [each._version for each in given]
        result = checkpoint(
            # Options are bound, as some of their names are torch's own.
            functools.partial(self._forward, **options),
            *arguments,
            use_reentrant=False,
            preserve_rng_state=self._preserve_random_state,
            context_fn=lambda: (contextlib.nullcontext(), before.again()),
        )
        before.forget_unchanged(self._name)
        if [each._version for each in given] != versions:
            raise Unsupported(
                "checkpointing of layers that change their inputs",
                "torch",
                message=f"{self._name!r} cannot be checkpointed: its forward pass changes its input in place, and "
                "would compute something else the second time.",
                instead="Leave it out of `checkpoint`, or make its first operation one that is not in place.",
            )
        return result


class _State:
    """Buffers and plain attributes of modules before a forward pass.

    Statistics of normalisations are not copied: while they are gathered, results do not depend on them.
    """

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
        """After the forward pass: keeps copies only of what it has changed.

        Raises `Unsupported` if that is a buffer which was too large to be copied.
        """
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
                _restore(module._buffers, kept_buffers)
                _restore(vars(module), attributes)


def _restore(current: dict[str, Any], before: dict[str, Any]) -> None:
    """Makes a dictionary what it was; it is never empty in between, as an interruption may come at any line."""
    for name in [name for name in current if name not in before]:
        del current[name]
    current.update(before)


def _plain_attributes(module: torch.nn.Module) -> dict[str, Any]:
    """The attributes of a module that are numbers, texts, truth values or `None`."""
    return {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
