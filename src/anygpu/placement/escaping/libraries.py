"""What functions that are not written in Python do with what they are given, as far as it matters here."""

from __future__ import annotations

import builtins
import math
import operator
import types
from typing import Any

import numpy as np

from anygpu.placement.escaping.values import ARRAY, HOLDER, IS_ARRAY, IS_INFO, IS_NUMBER


def _builtins(names: str) -> frozenset[Any]:
    return frozenset(getattr(builtins, name) for name in names.split())


#: Builtins that give one of Python's numbers.
_GIVE_NUMBERS = _builtins("len all any bool float int ord hash callable isinstance issubclass hasattr")
#: Builtins that give texts.
_GIVE_TEXTS = _builtins("str repr format chr hex bin oct ascii")
#: Builtins whose result is, or holds, what they are given.
_GIVE_WHAT_THEY_GET = _builtins("abs complex divmod round sum min max pow slice range bytes tuple list sorted")
#: The same, in an object that nobody can take it out of.
_GIVE_HOLDERS = _builtins("dict set frozenset reversed iter next filter")

#: NumPy's functions that give memory of somebody else, keep what they get, or change NumPy itself.
_NOT_NUMPYS = frozenset(
    [
        "frombuffer",
        "memmap",
        "from_dlpack",
        "fromfile",
        "fromiter",
        "load",
        "save",
        "savez",
        "savez_compressed",
        "savetxt",
        "loadtxt",
        "genfromtxt",
        "seterrcall",
        "setbufsize",
        "set_printoptions",
        "set_string_function",
        "nditer",
        "nested_iters",
        "vectorize",
        "frompyfunc",
        "matrix",
        "asmatrix",
        "mat",
        "bmat",
        "poly1d",
        "recarray",
        "record",
        "rec",
        "chararray",
        "require",
        "busdaycalendar",
        "datetime_data",
        "test",
        "info",
        "show_config",
        "show_runtime",
        "lookfor",
        "source",
        "deprecate",
        "ndarray",
        "errstate",
        "printoptions",
        "ndenumerate",
        "broadcast",
        "flatiter",
        "array2string",
        "array_repr",
        "array_str",
    ]
)
#: NumPy's modules whose functions are known: the others have classes of arrays of their own.
_NUMPYS = (
    "numpy", "numpy.linalg", "numpy.fft", "numpy._core", "numpy.lib._", "numpy.lib.stride_tricks", "numpy.linalg._",
    "numpy.fft._", "numpy.lib.scimath", "numpy.random",
)  # fmt: skip
#: Functions that write to their first argument.
WRITES_TO_FIRST = frozenset(
    [
        "copyto",
        "put",
        "place",
        "putmask",
        "fill_diagonal",
        "put_along_axis",
        "shuffle",
        "at",
        "setfield",
        "partition_inplace",
    ]
)
#: Functions that say something about an array, and never give one.
_ABOUT = frozenset(
    [
        "shape",
        "ndim",
        "size",
        "result_type",
        "issubdtype",
        "issubclass_",
        "can_cast",
        "isscalar",
        "iscomplexobj",
        "isrealobj",
        "common_type",
        "min_scalar_type",
        "promote_types",
        "dtype",
        "finfo",
        "iinfo",
        "mintypecode",
        "may_share_memory",
        "shares_memory",
        "broadcast_shapes",
        "isdtype",
        "geterr",
        "seterr",
    ]
)
#: Functions that always give an array.
_GIVE_ARRAYS = frozenset(
    [
        "array",
        "asarray",
        "asanyarray",
        "ascontiguousarray",
        "asfortranarray",
        "zeros",
        "ones",
        "empty",
        "full",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "arange",
        "linspace",
        "logspace",
        "geomspace",
        "eye",
        "identity",
        "concatenate",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "column_stack",
        "broadcast_to",
        "tile",
        "repeat",
        "ravel",
        "tril",
        "triu",
        "convolve",
        "correlate",
        "pad",
        "moveaxis",
        "swapaxes",
        "transpose",
        "expand_dims",
        "reshape",
        "roll",
        "flip",
        "fliplr",
        "flipud",
        "rot90",
        "cumsum",
        "cumprod",
        "sort",
        "argsort",
        "diff",
        "outer",
        "hanning",
        "hamming",
        "blackman",
        "bartlett",
        "kaiser",
        "rfft",
        "irfft",
        "fft",
        "ifft",
        "fftfreq",
        "rfftfreq",
        "fftshift",
        "ifftshift",
        "sliding_window_view",
        "as_strided",
        "digitize",
        "bincount",
        "flatnonzero",
    ]
)
#: Functions that may put any object into an array of objects.
_MAY_HOLD_OBJECTS = frozenset(
    ["array", "asarray", "asanyarray", "full", "full_like", "ascontiguousarray", "asfortranarray"]
)
#: Functions of C, by module, that keep nothing and take whatever converts to an array.
_MODULES_OF_C = frozenset(("math", "cmath", "_operator", "itertools", "scipy.ndimage._nd_image"))
_WRITING_OPERATORS = frozenset(
    [
        "setitem",
        "delitem",
        "iadd",
        "isub",
        "imul",
        "itruediv",
        "ifloordiv",
        "imod",
        "ipow",
        "imatmul",
        "iand",
        "ior",
        "ixor",
        "ilshift",
        "irshift",
        "iconcat",
        "call",
        "length_hint",
    ]
)
#: Methods of texts, lists and arrays that give an array for an array.
ARRAY_METHODS = frozenset(
    [
        "astype",
        "copy",
        "reshape",
        "ravel",
        "flatten",
        "transpose",
        "swapaxes",
        "cumsum",
        "cumprod",
        "repeat",
        "conj",
        "conjugate",
    ]
)
#: Methods that write to their object.
WRITING_METHODS = frozenset(
    [
        "sort",
        "fill",
        "put",
        "partition",
        "itemset",
        "resize",
        "setfield",
        "setflags",
        "byteswap",
        "append",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "clear",
        "update",
        "setdefault",
        "reverse",
        "add",
        "discard",
    ]
)
#: Attributes that say something about an array.
ABOUT_ATTRIBUTES = frozenset(["shape", "ndim", "dtype", "size", "itemsize", "nbytes", "strides"])
#: Attributes that are ways to memory, or to types.
NOT_ATTRIBUTES = frozenset(
    ("base", "__array_interface__", "__array_struct__", "ctypes", "data", "__dict__", "getfield")
)


def is_numpys(value: Any) -> bool:
    """Whether it is one of NumPy's functions, types or ufuncs that are known to keep nothing."""
    name = str(getattr(value, "__name__", ""))
    if isinstance(value, np.ufunc):
        return True  # whoever made it: it sees NumPy's own arrays
    if isinstance(value, type):
        return issubclass(value, np.generic | np.dtype | np.finfo | np.iinfo | np.ndindex)
    own = getattr(value, "__self__", None)
    if isinstance(own, np.random.RandomState):
        return True
    if isinstance(own, np.ufunc):
        return True
    module = str(getattr(value, "__module__", ""))
    if type(value).__name__ == "_Function" and module.startswith("scipy.fft"):
        return True  # SciPy's way to other libraries' transforms: without these it is NumPy's code in C++
    is_function = isinstance(value, types.FunctionType | types.BuiltinFunctionType) or (
        type(value).__name__ == "_ArrayFunctionDispatcher"
    )
    known = any(module == each or (each[-1] == "_" and module.startswith(each)) for each in _NUMPYS)
    known = known or module.startswith("numpy._core.")
    return is_function and known and name not in _NOT_NUMPYS


def result_of_numpys(value: Any, flags: int) -> int:
    """The flags of what one of NumPy's functions returns for arguments with these flags."""
    name = str(getattr(value, "__name__", ""))
    if value in (np.finfo, np.iinfo):
        return IS_INFO
    if name in _ABOUT or (isinstance(value, type) and not issubclass(value, np.generic)):
        return 0
    if isinstance(value, np.ufunc):
        return flags & ARRAY
    if name not in _MAY_HOLD_OBJECTS:
        flags &= ~HOLDER
    return flags | (IS_ARRAY if name in _GIVE_ARRAYS else 0)


def result_of_builtin(value: Any, flags: int) -> int | None:
    """The same for a builtin of Python's; `None` for one that is not known."""
    if not isinstance(value, types.BuiltinFunctionType | type):
        return None
    if value in _GIVE_NUMBERS:
        return IS_NUMBER
    if value in _GIVE_TEXTS:
        return 0
    if value in _GIVE_WHAT_THEY_GET:
        return flags
    if value in _GIVE_HOLDERS:
        return flags | (HOLDER if flags & ARRAY or value not in (dict,) else 0)
    if isinstance(value, types.BuiltinFunctionType):
        module = value.__module__
        if value is operator.index or module in ("math", "cmath"):
            return IS_NUMBER if value not in (math.modf, math.frexp) else 0
        if module in _MODULES_OF_C and value.__name__ not in _WRITING_OPERATORS:
            return flags | (HOLDER if module == "itertools" else 0)
    if isinstance(value, type) and value.__module__ == "itertools":
        return flags | HOLDER
    return None
