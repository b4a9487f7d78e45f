"""What modules have in common, and so must not run at the same time.

A module that is part of two others, or the state of a hook that is on both, is used by one of them at a time: such
modules are one group, which runs in order on one thread. Tensors that several groups can reach may be read at the same
time, and are watched for being changed.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from anygpu.pytorch.batch_tensors import tensors_of

#: Nothing that two hooks could both change.
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size, types.ModuleType,
    types.BuiltinFunctionType, frozenset,
)  # fmt: skip


def groups_of(modules: Sequence[torch.nn.Module]) -> list[list[int]]:
    """The positions of modules that have something in common, together and in order."""
    group_of: dict[int, int] = {}
    merged = list(range(len(modules)))

    def root(number: int) -> int:
        while merged[number] != number:
            number = merged[number]
        return number

    for number, module in enumerate(modules):
        for thing in _things(module):
            first = group_of.setdefault(id(thing), number)
            one, other = sorted((root(first), root(number)))
            merged[other] = one
    found: dict[int, list[int]] = {}
    for number in range(len(modules)):
        found.setdefault(root(number), []).append(number)
    return list(found.values())


def _things(module: torch.nn.Module) -> Iterator[Any]:
    """What may hold state: its submodules, and what their hooks know."""
    for part in module.modules():
        yield part
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            for hook in getattr(part, name).values():
                yield from _known_by(hook)


def _known_by(hook: Any) -> Iterator[Any]:
    if not isinstance(hook, types.FunctionType):
        yield hook  # an object that is called, which may keep anything
    owner = getattr(hook, "__self__", None)
    if owner is not None and not isinstance(owner, _ATOMS):
        yield owner
    for cell in getattr(hook, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not yet set
            continue
        if isinstance(content, types.FunctionType):
            yield from _known_by(content)
        elif not isinstance(content, _ATOMS):
            yield content
    if isinstance(hook, types.FunctionType) and hook.__code__.co_names:
        yield hook.__code__  # it uses names of its module, which another hook with the same code uses too


def common_tensors(
    modules: Sequence[torch.nn.Module], inputs: Sequence[Any], groups: Sequence[Sequence[int]]
) -> list[torch.Tensor]:
    """Those whose memory more than one group can reach, each once."""
    seen: dict[int, tuple[int, torch.Tensor]] = {}
    found: dict[int, torch.Tensor] = {}
    for number, group in enumerate(groups):
        for position in group:
            for tensor in (*_own_tensors(modules[position]), *tensors_of(inputs[position])):
                place = _place(tensor)
                if place is None:
                    continue
                first, _ = seen.setdefault(place, (number, tensor))
                if first != number:
                    found[place] = tensor
    return list(found.values())


def _own_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _place(tensor: torch.Tensor) -> int | None:
    """Where its storage is; `None` for one that has none, such as a sparse one."""
    try:
        return int(tensor.untyped_storage().data_ptr()) or None
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def versions(tensors: Sequence[torch.Tensor]) -> list[int] | None:
    """How often each was changed in place; `None` if one does not count it, as those of the inference mode do not."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return None
