"""Hooks that run in a backward pass: with micro-batches they run for each, on a part of what they expect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode


class BackwardHooks:
    """Finds hooks on modules, on their parameters and on some others. It is asked before every step that is cut."""

    def __init__(self, modules: Iterable[tuple[str, torch.nn.Module]], others: Iterable[torch.nn.Parameter]) -> None:
        self._modules = list(modules)
        inside = [each for _, module in self._modules for each in module.parameters(recurse=False)]
        self._parameters = list(dict.fromkeys([*inside, *others]))

    def first(self) -> str:
        """The first hook that is found, in words; empty if there is none."""
        if torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks:
            return "a backward hook is registered for every module"
        for path, module in self._modules:
            if module._backward_hooks or module._backward_pre_hooks:
                return f"{_named(type(module).__name__, path)} has a backward hook"
        for parameter in self._parameters:
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return f"{_named('parameter', self._name_of(parameter))} has a hook for its gradient"
        return ""

    def _name_of(self, parameter: torch.nn.Parameter) -> str:
        """Empty for one that no module has."""
        for path, module in self._modules:
            for name, each in module.named_parameters(recurse=False):
                if each is parameter:
                    return f"{path}.{name}".lstrip(".")
        return ""


def _named(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else f"a {kind}"


class HookWatch(TorchFunctionMode):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """A block that notes whether hooks are registered on tensors: torch does not say which tensors have some."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found = self.found or func in _REGISTER
        return func(*args, **(kwargs or {}))


_REGISTER = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
