"""`anygpu.fft`: the transforms of `numpy.fft` and of the Array API's extension of that name."""

# ruff: noqa: F403 - what is exported stands with the functions

from anygpu.array.functions.fourier import *
from anygpu.array.functions.fourier import __all__ as __all__
