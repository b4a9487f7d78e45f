"""Copies of modules, optimisers and batches that have shapes and no data. The originals are not touched."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from anygpu.pytorch.batches import count_rows, leaves, mapped


def fake_module(mode: Any, model: torch.nn.Module) -> tuple[torch.nn.Module, dict[int, torch.Tensor]]:
    """A copy whose tensors are fakes, and the fakes by the `id` of the tensor that each stands for."""
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper computes what the module inside does
    fakes: dict[int, torch.Tensor] = {}
    for tensor in _tensors(model):
        if id(tensor) not in fakes:
            fake = mode.from_tensor(tensor.detach() if tensor.grad_fn is not None else tensor)
            if fake.is_leaf:
                fake.grad = None
            fakes[id(tensor)] = fake
    memo: dict[int, Any] = dict(fakes)
    return copy.deepcopy(model, memo), fakes


def _tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters, buffers, and tensors that are attributes, or in lists and dictionaries that are."""
    for module in model.modules():
        for value in vars(module).values():
            yield from _inside(value)


def _inside(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from (one for one in value if isinstance(one, torch.Tensor))
    elif isinstance(value, dict):
        yield from (one for one in value.values() if isinstance(one, torch.Tensor))


def fake_batch(mode: Any, batch: Any, rows: int) -> Any:
    """The batch with `rows` rows instead of its own."""
    usual = count_rows(leaves(batch))
    if usual is None:
        raise ValueError("the batch has no tensor with rows")

    def fake(leaf: torch.Tensor) -> torch.Tensor:
        if leaf.dim() == 0 or leaf.shape[0] != usual:
            return mode.from_tensor(leaf.detach())
        with mode:
            return torch.empty_strided(
                (rows, *leaf.shape[1:]),
                leaf.stride(),
                dtype=leaf.dtype,
                device=leaf.device,
                requires_grad=leaf.requires_grad,
            )

    return mapped(batch, fake)


def fake_optimizer(
    mode: Any, optimizer: torch.optim.Optimizer, fakes: dict[int, torch.Tensor]
) -> torch.optim.Optimizer:
    """A copy that steps the fakes, and none of the hooks that others have put on the original."""

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in fakes:
            # A count of steps is read by the optimiser, so that its value must be known: torch keeps it with the fake.
            known = value.item() if value.dim() == 0 and value.device.type == "cpu" else None
            with mode:
                fakes[id(value)] = (
                    mode.from_tensor(value.detach()) if known is None else torch.tensor(known, dtype=value.dtype)
                )
        return fakes[id(value)]

    made = object.__new__(type(optimizer))
    made.__dict__.update({name: copy.copy(value) for name, value in vars(optimizer).items() if name not in _ITS_OWN})
    for name in _HOOKS:
        if name in made.__dict__:
            setattr(made, name, {})
    made.param_groups = [
        {key: [fake(one) for one in value] if key == "params" else fake(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]
    made.state.clear()
    for parameter, state in optimizer.state.items():
        made.state[fake(parameter)] = {key: fake(value) for key, value in state.items()}
    return made


#: What is made anew for the copy, or would lead back to the original: a schedule of learning rates wraps `step`.
_ITS_OWN = frozenset({"param_groups", "step"})
_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)
