"""The dtype in which a module computes: which are worth trying on a device, and what each needs around a step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

import torch

from anygpu.errors import InvalidOption
from anygpu.pytorch.step_plans import PRECISIONS, StepPrecision

_DTYPES: dict[StepPrecision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

#: The first generation of CUDA cards that compute in bfloat16.
_BFLOAT16_SINCE = (8, 0)


def precisions_for(asked: str, model: torch.nn.Module, device: torch.device) -> tuple[StepPrecision, ...]:
    """The precisions to choose from by measurement, the one to prefer first.

    `asked` is "auto" or a name. A module with parameters of a half type computes in that. Raises `InvalidOption` for an
    unknown name, and for one that such a module cannot be trained in.
    """
    own = own_precision(model)
    if own is not None:
        if asked not in ("auto", own):
            raise InvalidOption(
                f"the module's parameters are {own} already, and cannot be trained in {asked}. Convert them with "
                "model.float(), or leave precision= out."
            )
        return (own,)
    if asked != "auto":
        if asked not in PRECISIONS:
            raise InvalidOption(f"precision={asked!r} is none of 'auto', {', '.join(map(repr, PRECISIONS))}.")
        return (next(each for each in get_args(StepPrecision) if each == asked),)
    candidate = faster_than_float32(device)
    return ("float32",) if candidate is None else ("float32", candidate)


def faster_than_float32(device: torch.device) -> StepPrecision | None:
    """A precision that the device has units for; `None` if there is none. Whether a module gains by it is measured."""
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= _BFLOAT16_SINCE else "float16"
    if device.type == "cpu":
        # There is no public way to ask for these.
        has = getattr(torch.cpu, "_is_avx512_bf16_supported", None), getattr(torch.cpu, "_is_amx_tile_supported", None)
        return "bfloat16" if any(ask is not None and ask() for ask in has) else None
    return None


def own_precision(model: torch.nn.Module) -> StepPrecision | None:
    """The half type that all parameters have already, `None` for other modules. It needs no autocast."""
    found = {each.dtype for each in model.parameters() if each.is_floating_point()}
    return _NAMES[found.pop()] if found in ({torch.bfloat16}, {torch.float16}) else None


def autocast(device: str, precision: StepPrecision) -> AbstractContextManager[Any]:
    """The context in which a module computes in that precision on a kind of device; none for float32."""
    if precision == "float32":
        return nullcontext()
    cast: AbstractContextManager[Any] = torch.autocast(device, _DTYPES[precision])
    return cast


class Casting:
    """Contexts and scaling that a precision needs around a step."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._device = device
        self._own = own_precision(model)
        self._scaler: torch.amp.GradScaler | None = None

    def cast(self, precision: StepPrecision) -> AbstractContextManager[Any]:
        """The context for one forward pass: autocast, or nothing for float32 and for the module's own type.

        At its end torch forgets the converted weights.
        """
        return autocast(self._device.type, "float32" if precision == self._own else precision)

    def scaler(self, precision: StepPrecision) -> torch.amp.GradScaler | None:
        """The gradient scaler of float16; `None` for other precisions.

        Small gradients vanish in float16, and only there: losses are scaled up before, gradients down after. It is
        kept, because its factor adapts from step to step.
        """
        if precision != "float16" or self._own is not None:
            return None
        if self._scaler is None:
            self._scaler = torch.amp.GradScaler(self._device.type)
        return self._scaler

    def state_dict(self) -> dict[str, Any] | None:
        """The scaler's state for a checkpoint; `None` as long as there is no scaler."""
        return None if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continues with a state of `state_dict`."""
        if state is None:
            self._scaler = None
            return
        self._scaler = torch.amp.GradScaler(self._device.type)
        self._scaler.load_state_dict(state)
