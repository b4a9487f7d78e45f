"""What a user without llvmlite is told, once: the command that installs it, and the gain to expect from it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from anygpu.engines.cpu.engine import CpuEngine
from anygpu.engines.numpy.engine import NumpyEngine
from anygpu.errors import DeviceFallback, MissingExtra
from anygpu.hardware.device import Device
from anygpu.plan.calibration import assumed
from anygpu.plan.predicting import predict
from anygpu.program.graph import Program

#: A smaller gain is not worth a warning.
_WORTH_SAYING = 1.5

_said = False


def predicted_gain(program: Program) -> float:
    """How many times as fast as NumPy native code is predicted to be, without measurements of this machine."""
    (numpy,) = NumpyEngine().discover()
    assert isinstance(numpy, Device)
    seconds = [predict(program, assumed(each)).seconds for each in (numpy, CpuEngine.processor())]
    return seconds[0] / max(seconds[1], 1e-9)


def warn_once(task: str, function: Callable[..., Any], program: Program, error: MissingExtra) -> None:
    """Warn of the first function of this process that would gain, at the line where it begins."""
    global _said
    gain = predicted_gain(program)
    if _said or gain < _WORTH_SAYING:
        return
    _said = True
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    file, line = (code.co_filename, code.co_firstlineno) if code is not None else ("anygpu", 0)
    message = f"{task} stays on NumPy: {error} (which is predicted to make it about {gain:.0f} × faster)"
    warnings.warn_explicit(message, DeviceFallback, file, line, module=getattr(inner, "__module__", None))
