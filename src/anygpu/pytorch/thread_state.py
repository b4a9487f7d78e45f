"""What torch keeps for each thread, carried from a caller into a thread that works for it.

A new thread begins with gradients on, without autocast, and on the first card. What the caller has set otherwise is
carried. What cannot be carried is named, so that the caller's own thread does the work.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple, TypeVar

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

T = TypeVar("T")
_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


class ThreadState(NamedTuple):
    """Torch's state of the caller's thread; each call of `run` sees a copy."""

    grad: bool
    inference: bool
    #: For each kind of device on which it is on, its dtype.
    autocast: tuple[tuple[str, torch.dtype], ...]
    autocast_cache: bool
    #: Only where it is not the default of new threads, which is the host.
    device: torch.device | None
    context: contextvars.Context

    @classmethod
    def here(cls) -> ThreadState:
        device = torch.get_default_device()
        on = [kind for kind in _AUTOCAST_DEVICES if torch.is_autocast_enabled(kind)]
        return cls(
            grad=torch.is_grad_enabled(),
            inference=torch.is_inference_mode_enabled(),
            autocast=tuple((kind, torch.get_autocast_dtype(kind)) for kind in on),
            autocast_cache=torch.is_autocast_cache_enabled(),
            device=None if device == torch.device("cpu") else device,
            context=contextvars.copy_context(),
        )

    def run(self, call: Callable[[], T]) -> T:
        """Return `call()` on this thread with that state, and restore the thread's own."""
        return self.context.copy().run(self._with_modes, call)

    def _with_modes(self, call: Callable[[], T]) -> T:
        with ExitStack() as stack:
            # The inference mode comes first: leaving or entering it sets the gradient mode.
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.autocast_cache))
            if self.device is not None:
                stack.enter_context(self.device)
            return call()


def not_carried() -> str | None:
    """State of this thread that no other can be given, as "a … is active"; `None` if there is none."""
    if _get_current_dispatch_mode_stack():
        return "a mode that sees every operation (TorchDispatchMode) is active"
    modes = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]
    if modes:
        return f"a mode that sees every function ({type(modes[-1]).__name__}) is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a transform of torch.func is active"
    hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if hooks is not None and torch._C._autograd._saved_tensors_hooks_is_enabled() and hooks(False) is not None:
        return "hooks on saved tensors are active"
    return None
