"""What functions that are not written in Python do with what they are given, as far as it matters here."""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import math
import operator
import types
from typing import Any

import numpy as np

from anygpu.placement.escaping.values import ARRAY, HOLDER, IS_ARRAY, IS_INFO, IS_NUMBER, NotProvedError


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

_OF_NUMPY = """
abs absolute all allclose alltrue amax amin angle any append apply_along_axis apply_over_axes arange argmax argmin
argpartition argsort argwhere around array array_equal array_equiv array_split asanyarray asarray asarray_chkfinite
ascontiguousarray asfortranarray atleast_1d atleast_2d atleast_3d average bartlett bincount blackman block
broadcast_arrays broadcast_shapes broadcast_to can_cast choose clip column_stack common_type compress concat
concatenate convolve copy copyto corrcoef correlate count_nonzero cov cross cumprod cumsum cumulative_prod
cumulative_sum delete diag diag_indices diag_indices_from diagflat diagonal diff digitize dot dsplit dstack ediff1d
einsum einsum_path empty empty_like expand_dims extract eye fill_diagonal fix flatnonzero flip fliplr flipud
fromfunction full full_like geomspace geterr gradient hamming hanning histogram histogram2d histogram_bin_edges
histogramdd hsplit hstack i0 identity imag in1d indices inner insert interp intersect1d isclose iscomplex iscomplexobj
isdtype isfortran isin isneginf isposinf isreal isrealobj isscalar issubdtype iterable ix_ kaiser kron lexsort
linspace logspace mask_indices matrix_transpose max max_scalar_type may_share_memory mean median meshgrid min
min_scalar_type mintypecode moveaxis nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian
nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar ndim nonzero ones ones_like outer packbits pad partition
percentile permute_dims piecewise place poly polyadd polyder polydiv polyfit polyint polymul polysub polyval prod
promote_types ptp put put_along_axis putmask quantile ravel ravel_multi_index real real_if_close repeat reshape resize
result_type roll rollaxis roots rot90 round searchsorted select setdiff1d seterr setxor1d shape shares_memory sinc
size sort sort_complex split squeeze stack std sum swapaxes take take_along_axis tensordot tile trace transpose
trapezoid trapz tri tril tril_indices tril_indices_from trim_zeros triu triu_indices triu_indices_from union1d unique
unique_all unique_counts unique_inverse unique_values unpackbits unravel_index unstack unwrap vander var vdot vsplit
vstack where zeros zeros_like
"""
_OF_LINALG = """
cholesky cond cross det diagonal eig eigh eigvals eigvalsh inv lstsq matmul matrix_norm matrix_power matrix_rank
matrix_transpose multi_dot norm outer pinv qr slogdet solve svd svdvals tensordot tensorinv tensorsolve trace vecdot
vector_norm
"""
_OF_FFT = (
    "fft fft2 fftfreq fftn fftshift hfft ifft ifft2 ifftn ifftshift ihfft irfft irfft2 irfftn rfft rfft2 rfftfreq rfftn"
)
_OF_RANDOM = """
beta binomial chisquare choice exponential gamma geometric gumbel laplace logistic lognormal multinomial
multivariate_normal normal permutation poisson rand randint randn random random_sample seed shuffle standard_normal
triangular uniform
"""
#: NumPy's functions that keep nothing, write only to `out` and to what is said below, and give memory of nobody else.
_NUMPYS: dict[Any, str] = {
    getattr(module, name): name
    for module, names in (
        (np, _OF_NUMPY),
        (np.linalg, _OF_LINALG),
        (np.fft, _OF_FFT),
        (np.random, _OF_RANDOM),
        (np.lib.stride_tricks, "sliding_window_view as_strided"),
    )
    for name in names.split()
    if hasattr(module, name)
}
#: Functions that write to their first argument.
_WRITE_TO_FIRST = frozenset(["copyto", "put", "place", "putmask", "fill_diagonal", "put_along_axis", "shuffle", "at"])
#: Functions that may write over their first argument, and after how many arguments it is said that they do not.
_OVERWRITE = {
    "nan_to_num": 1, "median": 3, "nanmedian": 3, "percentile": 4, "nanpercentile": 4, "quantile": 4, "nanquantile": 4,
}  # fmt: skip
_SAY_SO = ("copy", "overwrite_input", "overwrite_x", "**")
#: Where functions in C, which have no signature, take `out`.
_OUT_IN_C = {"concatenate": 2, "concat": 2, "dot": 2}
_NO_OUT_IN_C = frozenset(
    [
        "arange",
        "array",
        "asarray",
        "asanyarray",
        "ascontiguousarray",
        "asfortranarray",
        "bincount",
        "can_cast",
        "copyto",
        "empty",
        "empty_like",
        "inner",
        "lexsort",
        "may_share_memory",
        "min_scalar_type",
        "packbits",
        "promote_types",
        "putmask",
        "ravel_multi_index",
        "result_type",
        "shares_memory",
        "unpackbits",
        "unravel_index",
        "vdot",
        "where",
        "zeros",
    ]
)


def written(value: Any, arguments: list[Any], keywords: dict[str, Any]) -> list[Any]:
    """The arguments that one of NumPy's functions may write to."""
    own = getattr(value, "__self__", None)
    name = str(getattr(value, "__name__", ""))
    named = list(keywords.values())
    found = [keywords["out"]] if "out" in keywords else []
    if isinstance(value, type):
        return found
    if isinstance(value, np.ufunc):
        return [*arguments[value.nin :], *found]
    if name in _WRITE_TO_FIRST:
        return [*arguments[:1], *named]
    if isinstance(own, np.ufunc):
        return [*arguments[2:], *found]
    if any(each in keywords for each in _SAY_SO) or len(arguments) > _OVERWRITE.get(name, 99):
        return [*arguments, *named]
    if _is_scipys_transform(value):
        return [*arguments, *named] if len(arguments) > 3 else found
    place = _out_of(value, name)
    return found if place is None else [*arguments[place:], *found]


@functools.cache
def _out_of(value: Any, name: str) -> int | None:
    """How many arguments are before `out`, and can be before anything that is not known."""
    if name in _OUT_IN_C:
        return _OUT_IN_C[name]
    if name in _NO_OUT_IN_C or isinstance(getattr(value, "__self__", None), np.random.RandomState):
        return None
    try:
        names = list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return 0
    return names.index("out") if "out" in names else None


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
        "bincount",
        "flatnonzero",
    ]
)
#: Functions that may put any object into an array of objects.
_MAY_HOLD_OBJECTS = frozenset(
    ["array", "asarray", "asanyarray", "full", "full_like", "ascontiguousarray", "asfortranarray"]
)
#: Functions in C that keep nothing: Python's, and those of SciPy that write to what they are given.
_OPERATORS = """abs add and_ concat contains countOf eq floordiv ge getitem gt index indexOf inv invert is_ is_not le
lshift lt matmul mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor"""
_ITERTOOLS = """accumulate chain combinations combinations_with_replacement compress count cycle dropwhile filterfalse
islice pairwise permutations product repeat starmap takewhile zip_longest"""
_OPERATORS_OF_C = frozenset(getattr(operator, name) for name in _OPERATORS.split())
_ITERATORS_OF_C = frozenset(getattr(itertools, name) for name in _ITERTOOLS.split())
WRITING_MODULES = frozenset(("scipy.ndimage._nd_image",))
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


_PRODUCTS = (math.prod, getattr(math, "sumprod", math.prod))
#: Functions that fill an array with what they are given: between which places.
FILLS = {
    "full": (1, 2), "full_like": (1, 2), "where": (1, 3), "array": (0, 1), "asarray": (0, 1), "asanyarray": (0, 1),
    "ascontiguousarray": (0, 1), "asfortranarray": (0, 1), "broadcast_to": (0, 1), "repeat": (0, 1), "tile": (0, 1),
    "ravel": (0, 1), "reshape": (0, 1), "atleast_1d": (0, 3), "atleast_2d": (0, 3), "atleast_3d": (0, 3),
    "zeros_like": (0, 1), "ones_like": (0, 1), "empty_like": (0, 1),
}  # fmt: skip


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", ""))


def is_of_objects(value: Any) -> bool:
    """Whether it says, as a type of arrays, that they are of objects."""
    if value in (object, np.object_) if isinstance(value, type) else isinstance(value, np.dtype) and value.hasobject:
        return True
    if type(value) is not str or len(value) > 8 or "o" not in value.lower():
        return False
    try:
        return np.dtype(value).hasobject
    except TypeError:
        return False


def is_numeric(value: Any) -> bool:
    """Whether an array of this, among others, is not for that reason one of objects."""
    if type(value) is int:
        return abs(value) < 2**63
    return value is not None


def check_shown(value: Any, flags: int) -> None:
    """A function that gives texts gets something with these flags: Python's texts of errors may name our class."""
    if flags & HOLDER and value in _GIVE_TEXTS:
        raise NotProvedError("it shows an error, or an object that may hold an array")


def is_numpys(value: Any) -> bool:
    """Whether it is one of NumPy's functions, types or ufuncs that are known to keep nothing."""
    if isinstance(value, np.ufunc):
        # Whoever made it, it sees NumPy's own arrays; but for those that call a function of Python's.
        return not all(set(each) <= set("O->") for each in value.types)
    if isinstance(value, type):
        return value.__module__.startswith("numpy") and issubclass(
            value, np.generic | np.dtype | np.finfo | np.iinfo | np.ndindex
        )
    if isinstance(value, types.BuiltinFunctionType):
        own = value.__self__
        if isinstance(own, np.ufunc):
            return is_numpys(own)
        if isinstance(own, np.random.RandomState):
            return value.__name__ in _OF_RANDOM.split()
    if _is_scipys_transform(value):
        return True
    return _is_hashable(value) and value in _NUMPYS


def _is_hashable(value: Any) -> bool:
    return isinstance(value, types.FunctionType | types.BuiltinFunctionType | type(np.sum))


def _is_scipys_transform(value: Any) -> bool:
    """SciPy's way to other libraries' transforms: without these it is its own code in C++."""
    return type(value).__name__ == "_Function" and str(getattr(value, "__module__", "")).startswith("scipy.fft")


def is_plain(value: Any) -> bool:
    """Whether any data may be given to it, and it writes to none of them."""
    if isinstance(value, np.ufunc):
        return False
    if is_numpys(value):
        name = str(getattr(value, "__name__", ""))
        return name not in _WRITE_TO_FIRST and name not in _OVERWRITE
    return result_of_builtin(value, 0) is not None and value.__module__ not in WRITING_MODULES


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
    if not isinstance(value, types.BuiltinFunctionType | type) or isinstance(
        getattr(value, "__self__", None), list | dict | set | np.ndarray
    ):
        return None
    if value in _GIVE_NUMBERS:
        return IS_NUMBER
    if value in _GIVE_TEXTS:
        return 0
    if value in _GIVE_WHAT_THEY_GET:
        return flags
    if value in _GIVE_HOLDERS:
        return flags | (HOLDER if flags & ARRAY or value not in (dict,) else 0)
    if value is operator.index or (
        isinstance(value, types.BuiltinFunctionType) and value.__module__ in ("math", "cmath")
    ):
        if value in _PRODUCTS:
            return flags  # of whatever there is to multiply
        return IS_NUMBER if value not in (math.modf, math.frexp) else 0
    if value in _OPERATORS_OF_C or value.__module__ in WRITING_MODULES:
        return flags
    return flags | HOLDER if value in _ITERATORS_OF_C else None
