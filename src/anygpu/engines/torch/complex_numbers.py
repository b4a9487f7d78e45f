"""Functions of complex numbers that torch has otherwise than NumPy for zeros, infinities and NaN: part by part."""

from __future__ import annotations

import torch

from anygpu.engines.torch.site import Step


def _negative(x: torch.Tensor) -> torch.Tensor:
    """Negate both parts; torch subtracts from 0, and gives 0 for 0."""
    return torch.view_as_complex(-torch.view_as_real(x))


def _reciprocal(x: torch.Tensor) -> torch.Tensor:
    """By the larger part first, as NumPy does, so that no square overflows."""
    real, imaginary = x.real, x.imag
    wide = imaginary.abs() <= real.abs()
    ratio = torch.where(wide, imaginary / real, real / imaginary)
    below = torch.where(wide, real + imaginary * ratio, real * ratio + imaginary)
    return torch.complex(torch.where(wide, 1.0, ratio) / below, torch.where(wide, -ratio, -1.0) / below)


def _acos(x: torch.Tensor) -> torch.Tensor:
    """The imaginary part has the other sign, also when it is 0."""
    found = torch.acos(x)
    return torch.complex(found.real, torch.copysign(found.imag, -x.imag))


def _log1p(x: torch.Tensor) -> torch.Tensor:
    above = x.real + 1
    return torch.complex(torch.log(torch.hypot(above, x.imag)), torch.atan2(x.imag, above))


UNARY: dict[str, Step] = {"negative": _negative, "reciprocal": _reciprocal, "acos": _acos, "log1p": _log1p}


def power(x: torch.Tensor, exponent: int) -> torch.Tensor:
    """Multiplied out by squares, as NumPy does for whole exponents; torch would go by way of the logarithm."""
    if exponent in (1, 2, 3):
        product = x if exponent == 1 else x * x if exponent == 2 else x * (x * x)
        return torch.where(x == 0, 0, product)
    result, square, rest = torch.ones_like(x), x, abs(exponent)
    while rest:
        if rest & 1:
            result = result * square
        rest >>= 1
        square = square * square if rest else square
    if exponent < 0:
        # Nothing can be told of 1 / 0 in the plane.
        return torch.where(x == 0, complex(torch.nan, torch.nan), torch.ones_like(x) / result)
    return torch.where(x == 0, 0, result) if exponent else result
