"""Plans of training steps, stored across runs in one small file each, without any name of the user's.

With `ANYGPU_HISTORY=off` nothing is read or written.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anygpu.base.cache_folder import cache_folder, decoded, sealed, sweep, unsealed, write_file
from anygpu.base.own_files import read_file
from anygpu.history.history import setting
from anygpu.pytorch.planning import Kept

if TYPE_CHECKING:
    import torch

#: Files that are kept; the oldest are removed.
MOST_FILES = 256
_MOST_BYTES = 1 << 20
#: Another meaning of the file gets another number.
_PURPOSE = b"anygpu.pytorch.step/1"


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """As it is written. Layers are numbers, because their names are the user's."""

    kept: Kept
    layers: tuple[int, ...]


def step_key(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Sequence[torch.Tensor], *options: object
) -> str:
    """A hash of what a step's memory and time depend on: structure, shapes, types, device, library, and the options."""
    import torch  # late: `anygpu history clear` removes plans where there is no torch

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
    """The stored plan of that step, if there is one; `layers` are those that may be checkpointed, in their order."""
    content = None if setting() == "off" else unsealed(read_file(_folder() / key, _MOST_BYTES), _PURPOSE)
    found = decoded(msgspec.json.decode, content, _Kept)
    if found is None or any(not 0 <= number < len(layers) for number in found.layers):
        return None
    return msgspec.structs.replace(found.kept, checkpoint=tuple(layers[number] for number in found.layers))


def remember(key: str, kept: Kept, layers: Sequence[str]) -> None:
    """Store the plan of that step, if the cache folder is writable."""
    numbers = {name: number for number, name in enumerate(layers)}
    if setting() == "off" or not set(kept.checkpoint) <= set(numbers):  # the user has named other layers
        return
    record = _Kept(
        kept=msgspec.structs.replace(kept, checkpoint=()), layers=tuple(numbers[name] for name in kept.checkpoint)
    )
    if write_file(_folder() / key, sealed(msgspec.json.encode(record), _PURPOSE)):
        _remove_oldest(MOST_FILES)


def forget_steps() -> None:
    """Remove all stored plans."""
    _remove_oldest(0)


def _folder() -> Path:
    return cache_folder() / "history" / "steps"


def _remove_oldest(most_files: int) -> None:
    with contextlib.suppress(OSError):
        sweep(_folder(), _is_key, now=time.time(), most_files=most_files)


def _is_key(name: str) -> bool:
    return re.fullmatch("[0-9a-f]{32}", name) is not None
