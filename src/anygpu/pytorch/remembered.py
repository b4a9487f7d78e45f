"""What was found out about steps, kept across runs, without any name of the user's."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
import torch

from anygpu.base.cache_folder import decoded
from anygpu.history.steps import read_step, write_step
from anygpu.pytorch.planning import Kept


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """As it is written. Layers are numbers, because their names are the user's."""

    kept: Kept
    layers: tuple[int, ...]


def step_key(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[torch.Tensor], *options: object
) -> str:
    """A hash of what a step's memory and time depend on: structure, shapes, types, device, library, and the options."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    parts: list[object] = [torch.__version__, name, torch.get_num_threads(), type(optimizer).__qualname__, *options]
    for module in model.modules():
        is_leaf = next(module.children(), None) is None
        parts.append((type(module).__qualname__, module.training, module.extra_repr() if is_leaf else ""))
    parts += [(tuple(each.shape), str(each.dtype), each.requires_grad) for each in model.parameters()]
    parts += [(tuple(each.shape), str(each.dtype)) for each in batch]
    for group in optimizer.param_groups:
        parts.append(sorted((name, value) for name, value in group.items() if isinstance(value, bool | None)))
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def recall(key: str, layers: Sequence[str]) -> Kept | None:
    """What is kept of that step; `layers` are those that may be checkpointed, in their order."""
    found = decoded(msgspec.json.decode, read_step(key), _Kept)
    if found is None or any(not 0 <= number < len(layers) for number in found.layers):
        return None
    return msgspec.structs.replace(found.kept, checkpoint=tuple(layers[number] for number in found.layers))


def remember(key: str, kept: Kept, layers: Sequence[str]) -> None:
    numbers = {name: number for number, name in enumerate(layers)}
    if not set(kept.checkpoint) <= set(numbers):
        return  # the user has named others
    record = _Kept(
        kept=msgspec.structs.replace(kept, checkpoint=()), layers=tuple(numbers[name] for name in kept.checkpoint)
    )
    write_step(key, msgspec.json.encode(record))
