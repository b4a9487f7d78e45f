"""Dtypes and their limits, the constants, and the namespace's inspection API."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from anygpu.array.core.array import Array, as_array, device_of
from anygpu.array.core.device import device_for, to_numpy_dtype
from anygpu.array.core.overrides import implements
from anygpu.array.core.traced_scalar import TracedScalar
from anygpu.program.primitives import MAX_DIMENSIONS

bool_ = to_numpy_dtype("bool")
int8 = to_numpy_dtype("int8")
int16 = to_numpy_dtype("int16")
int32 = to_numpy_dtype("int32")
int64 = to_numpy_dtype("int64")
uint8 = to_numpy_dtype("uint8")
uint16 = to_numpy_dtype("uint16")
uint32 = to_numpy_dtype("uint32")
uint64 = to_numpy_dtype("uint64")
float16 = to_numpy_dtype("float16")
float32 = to_numpy_dtype("float32")
float64 = to_numpy_dtype("float64")
complex64 = to_numpy_dtype("complex64")
complex128 = to_numpy_dtype("complex128")
#: The standard's name. From here on the built-in type is `builtins.bool` in this file.
bool = bool_

e: float = np.e
inf: float = np.inf
nan: float = np.nan
newaxis = None
pi: float = np.pi


@implements(np.astype)
def astype(x: Any, dtype: npt.DTypeLike, /, *, copy: builtins.bool = True, device: object | None = None) -> Array:
    """The array cast to another dtype."""
    array = as_array(x, device_of(x))
    if device is not None:
        array = array.to_device(device)
    return array.astype(dtype, copy=copy or array is not x)


@implements(np.can_cast)
def can_cast(from_: Any, to: npt.DTypeLike, /, casting: Any = "safe") -> builtins.bool:
    """Whether values of one type can be converted to another under the casting rule."""
    return np.can_cast(from_.dtype if isinstance(from_, Array) else from_, to, casting)


@implements(np.result_type)
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The type that an operation between all of them has; Python numbers adapt to the others."""
    return np.result_type(*map(_telling, arrays_and_dtypes))


def _telling(x: Any) -> Any:
    """A dtype or array, as an argument for NumPy's own dtype functions."""
    return x.dtype if isinstance(x, Array) else x.sample if type(x) is TracedScalar else x


@implements(np.common_type)
def common_type(*arrays: Any) -> type[Any]:
    """The floating-point type that holds all of them, as NumPy's scalar type."""
    known = (np.empty(0, each.dtype) if isinstance(each, Array) else each for each in arrays)
    found: type[Any] = np.common_type(*known)
    return found


@implements(np.min_scalar_type)
def min_scalar_type(a: Any, /) -> np.dtype[Any]:
    """The smallest type that holds a single number, whose value is computed; of an array, its own type."""
    if isinstance(a, Array):
        return np.min_scalar_type(np.asarray(a)) if a.ndim == 0 else a.dtype
    return np.min_scalar_type(a)


@implements(np.isdtype)
def isdtype(dtype: Any, kind: Any) -> builtins.bool:
    """Whether a dtype is of a kind such as "real floating", or is one of those given."""
    return np.isdtype(np.dtype(dtype), kind)


class FloatInfo(NamedTuple):
    """Limits of a floating-point type, as Python's own numbers: they adapt to the arrays that they meet."""

    dtype: np.dtype[Any]
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    smallest_subnormal: float
    resolution: float
    precision: int

    @property
    def tiny(self) -> float:
        return self.smallest_normal


def finfo(type: Any, /) -> FloatInfo:
    """The limits of a floating-point dtype, or of the parts of a complex one."""
    known = np.finfo(_dtype_of(type))
    return FloatInfo(
        dtype=known.dtype,
        bits=known.bits,
        eps=float(known.eps),
        max=float(known.max),
        min=float(known.min),
        smallest_normal=float(known.smallest_normal),
        smallest_subnormal=float(known.smallest_subnormal),
        resolution=float(known.resolution),
        precision=known.precision,
    )


def iinfo(type: Any, /) -> np.iinfo[Any]:
    """The limits of an integer dtype."""
    return np.iinfo(_dtype_of(type))


def _dtype_of(type: Any) -> np.dtype[Any]:
    return type.dtype if isinstance(type, Array | np.ndarray | np.generic) else np.dtype(type)


_KINDS: dict[str, tuple[np.dtype[Any], ...]] = {
    "bool": (bool_,),
    "signed integer": (int8, int16, int32, int64),
    "unsigned integer": (uint8, uint16, uint32, uint64),
    "real floating": (float32, float64),
    "complex floating": (complex64, complex128),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]


def _only_the_default() -> list[str]:
    return [device_for(None).device]


_list_devices: Callable[[], list[str]] = _only_the_default


def set_devices(list_devices: Callable[[], list[str]]) -> None:
    """Called once by the layer that owns the engines: which devices arrays can be on."""
    global _list_devices
    _list_devices = list_devices


class NamespaceInfo:
    """The inspection API of the Array API standard."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MAX_DIMENSIONS}

    def default_device(self) -> str:
        return device_for(None).device

    def default_dtypes(self, *, device: object | None = None) -> dict[str, np.dtype[Any]]:
        """NumPy's default types, by the Array API's names of their kinds."""
        return {
            "real floating": float64,
            "complex floating": complex128,
            "integral": int64,
            "indexing": int64,
        }

    def devices(self) -> list[str]:
        return _list_devices()

    def dtypes(
        self, *, device: object | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, np.dtype[Any]]:
        """The types that the standard names; float16 exists too, where the device has it."""
        kinds = ("bool", "numeric") if kind is None else (kind,) if isinstance(kind, str) else kind
        unknown = [each for each in kinds if each not in _KINDS]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not a kind of dtype; available: {', '.join(_KINDS)}.")
        return {dtype.name: dtype for each in kinds for dtype in _KINDS[each]}


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807 - the standard's name
    return NamespaceInfo()
