"""Arguments that may be NumPy's arrays or ours, for functions whose code computes with either.

Called with NumPy's arrays, such a function returns NumPy's; called with ours, or traced, it returns ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anygpu.array.core.arguments import bound_to, device_among, on_device, to_array
from anygpu.array.core.array import Array
from anygpu.array.core.recording import cast, dtype_name
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.base.typing import HostArray


def either(*given: Any) -> list[Any]:
    """All as ours, on the device of the first that is, when one of them is; otherwise all as NumPy's. None stays."""
    if any(isinstance(each, Array) or type(each) is TracedScalar for each in given):
        device = device_among(*given)
        return [None if each is None else to_array(each, device) for each in given]
    return [None if each is None else np.asarray(each) for each in given]


def table(values: HostArray, beside: Any) -> Any:
    """Numbers that this package worked out itself, as what stands beside them is."""
    if not isinstance(beside, Array):
        return values
    return Array(bound_to(on_device(np.ascontiguousarray(values), beside._device), beside._device))


def converted(x: Any, dtype: Any) -> Any:
    """In another type; what has it already is itself."""
    if x.dtype == dtype:
        return x
    return Array(cast(x._value, dtype_name(dtype))) if isinstance(x, Array) else x.astype(dtype)


def in_float(x: Any) -> Any:
    """Integers as the floats that NumPy makes of them; everything else as it is."""
    return converted(x, np.result_type(x.dtype, np.float16)) if x.dtype.kind in "biu" else x


def in_single(x: Any) -> Any:
    """Half precision as single, so that several steps round once; integers as floats; everything else as it is."""
    return converted(x, np.float32) if x.dtype == np.float16 else in_float(x)


def in_type_of(result: Any, x: Any) -> Any:
    """What was computed with `in_single(x)`, in the type of `x`."""
    return converted(result, np.float16) if x.dtype == np.float16 and result.dtype == np.float32 else result
