"""Patterns of a program as calls of torch's own functions, which do many steps at once."""

from __future__ import annotations

import functools
import math

import torch

from anygpu.engines.torch.patterns import Gelu, LayerNorm, Linear, Pattern, Softmax
from anygpu.engines.torch.site import Step

_linear: Step = torch.nn.functional.linear


def fused(pattern: Pattern) -> Step:
    """The step from the pattern's sources to its result."""
    match pattern:
        case Linear():
            return _turned_linear if pattern.turned else _linear
        case LayerNorm():
            return _layer_norm(pattern)
        case Gelu(approximate=True):
            return functools.partial(torch.nn.functional.gelu, approximate="tanh")
        case Gelu():
            return _gelu
        case Softmax():
            return functools.partial(torch.softmax, dim=pattern.axis)


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """On a processor torch may take oneDNN's, which makes NaN of infinity: a sum tells whether there is one."""
    result = torch.nn.functional.gelu(x)
    if x.is_cpu and not math.isfinite(result.sum().item()):
        return torch.where(x == torch.inf, x, result)
    return result


def _turned_linear(x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, matrix.t(), bias)


def _layer_norm(pattern: LayerNorm) -> Step:
    normalise = torch.nn.functional.layer_norm
    shape, eps = list(pattern.shape), pattern.eps
    if pattern.weight is None and pattern.bias is not None:
        return lambda x, bias: normalise(x, shape, None, bias, eps)
    return lambda x, *parts: normalise(x, shape, *parts, eps=eps)
