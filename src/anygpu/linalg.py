"""`anygpu.linalg`: linear algebra, as in the Array API standard and in `numpy.linalg`."""

# ruff: noqa: F403 - what is exported stands with the functions

from anygpu.array.functions.linalg import *
from anygpu.array.functions.linalg import __all__ as __all__
