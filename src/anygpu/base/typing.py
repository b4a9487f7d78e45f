"""Types that every layer may use."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

#: An array in the memory of this process, of any dtype and shape.
HostArray = npt.NDArray[Any]
