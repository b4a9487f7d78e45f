"""Functions that ask what their arguments are: types, attributes, lengths, flags, and Python's builtins on arrays."""

import collections.abc
import copy
import math
import numbers

import numpy as np

from tests.semantics.cases import case, given, matrix, positive, turn, vector


@case(lambda n: (vector(n),))
def isinstance_ndarray(x):
    return x * 2 if isinstance(x, np.ndarray) else x * 3


@case(lambda n: (turn(n, vector(n), [1.0, 2.0, 3.0]),))
def not_isinstance_so_convert(x):
    if not isinstance(x, np.ndarray):
        x = np.array(x, np.float32)
    return x * 2


@case(lambda n: (turn(n, vector(n), [1.0, 2.0], 3.0),))
def isinstance_of_several(x):
    if isinstance(x, (list, tuple)):
        return [each * 2 for each in x]
    if isinstance(x, (int, float)):
        return x + 1
    return x * 3


@case(lambda n: (vector(n),), either=True)
def type_is_ndarray(x):
    return x * 2 if type(x) is np.ndarray else x * 3


@case(lambda n: (vector(n),), either=True)
def name_of_the_type(x):
    return x * len(type(x).__name__)


@case(lambda n: (vector(n),), either=True)
def class_attribute(x):
    return x * 2 if x.__class__ is np.ndarray else x * 3


@case(lambda n: (vector(n),), either=True)
def issubclass_of_the_type(x):
    return x * 2 if issubclass(type(x), np.ndarray) else x * 3


@case(lambda n: (vector(n),))
def isinstance_of_a_scalar_result(x):
    return x * (2 if isinstance(x.sum(), np.floating) else 3)


@case(lambda n: (vector(n),))
def isinstance_of_an_element(x):
    return x * (2 if isinstance(x[0], np.float32) else 3), x * (2 if isinstance(x[0], np.ndarray) else 3)


@case(lambda n: (vector(n),))
def isscalar(x):
    return x * (2 if np.isscalar(x.sum()) else 3), x * (2 if np.isscalar(x) else 3)


@case(lambda n: (vector(n), turn(n, 2.0, 3, np.float32(2), True)))
def isscalar_of_an_argument(x, a):
    return x * (2 if np.isscalar(a) else 3)


@case(lambda n: (vector(n), turn(n, 2.0, 3, np.float32(2), True, 1j)))
def isinstance_of_numbers(x, a):
    if isinstance(a, bool):
        return x * 2
    if isinstance(a, int):
        return x * 3
    if isinstance(a, (float, np.floating)):
        return x * 4
    return x * 5


@case(lambda n: (vector(n), turn(n, 2.0, 3, np.float64(2))), either=True)
def type_of_numbers(x, a):
    return x * 2 if type(a) is float else x * 3 if type(a) is int else x * 4


@case(lambda n: (vector(n), turn(n, 2.0, 3)), either=True)
def abstract_numbers(x, a):
    return x * (2 if isinstance(a, numbers.Integral) else 3), x * isinstance(a, numbers.Real)


@case(lambda n: (vector(n),), either=True)
def abstract_containers(x):
    return (
        x * (2 if isinstance(x, collections.abc.Sequence) else 3),
        x * (2 if isinstance(x, collections.abc.Iterable) else 3),
        x * (2 if isinstance(x, collections.abc.Sized) else 3),
        x * (2 if isinstance(x, collections.abc.Callable) else 3),
    )


@case(lambda n: (vector(n),), either=True)
def abstract_hashable(x):
    return x * (2 if isinstance(x, collections.abc.Hashable) else 3)


@case(lambda n: (vector(n),), either=True)
def hasattr_of_an_array(x):
    names = ("shape", "view", "__array_interface__", "__len__", "to_numpy", "read", "iloc", "numpy", "device")
    return x * 2, [hasattr(x, name) for name in names]


@case(lambda n: (vector(n),), either=True)
def hasattr_of_what_only_we_have(x):
    names = ("compute", "program", "_value", "__array_function__", "__array_ufunc__", "toarray", "todense", "values")
    return x * 2, [hasattr(x, name) for name in names]


@case(lambda n: (vector(n),), either=True)
def hasattr_of_a_scalar_result(x):
    names = ("shape", "item", "__len__", "is_integer", "__iter__", "__float__", "compute")
    return x * 2, [hasattr(x.sum(), name) for name in names]


@case(lambda n: (vector(n),), either=True)
def getattr_with_a_default(x):
    return x * getattr(x, "factor", 3), x * getattr(x, "ndim", 3), getattr(x, "name", None)


@case(lambda n: (vector(n),), either=True)
def attribute_error_of_an_array(x):
    try:
        return x.values * 2
    except AttributeError as error:
        return x * 3, str(error)


@case(lambda n: (matrix(n),))
def facts(x):
    return x * 2, x.shape, x.ndim, x.size, x.dtype, x.itemsize, x.nbytes, len(x)


@case(lambda n: (turn(n, matrix(n), np.asfortranarray(matrix(n)), matrix(n)[:, ::2]),))
def flags(x):
    if x.flags.c_contiguous:
        return x * 2
    return x * 3 if x.flags["F_CONTIGUOUS"] else x * 4


@case(lambda n: (turn(n, matrix(n), matrix(n)[::-1], matrix(n).T.copy().T),))
def strides(x):
    return x * 2, x.strides


@case(lambda n: (vector(n),), either=True)
def base_of_an_argument(x):
    return x * 2, x.base is None, x.flags.owndata, x.flags.writeable


@case(lambda n: (matrix(n),), either=True)
def facts_of_a_temporary(x):
    y = x * 2
    return y, y.flags.c_contiguous, y.strides, y.T.flags.f_contiguous, y.base is None, y.flags.writeable


@case(lambda n: (vector(n),))
def the_dtype_is_used(x):
    return x.dtype.type(3) * x, x.astype(x.dtype), np.zeros(3, x.dtype) + x[:3], x + np.finfo(x.dtype).eps


@case(lambda n: (vector(n, dtype=turn(n, np.float32, np.int32, np.uint8)),))
def questions_about_types(x):
    if np.issubdtype(x.dtype, np.unsignedinteger):
        return x * 2
    if np.issubdtype(x.dtype, np.integer):
        return x * 3
    return x * 4 if x.dtype == np.float32 else x


@case(lambda n: (vector(n), vector(n, dtype=np.int32)))
def result_types(x, k):
    return (x + k).astype(np.result_type(x, np.float64)), np.can_cast(k.dtype, x.dtype), np.promote_types(x.dtype, "i8")


@case(lambda n: (vector(n),))
def questions_about_kinds(x):
    return x * 2, np.iscomplexobj(x), np.isrealobj(x), np.ndim(x), np.shape(x), np.size(x), np.iterable(x)


@case(lambda n: (vector(n),))
def identity(x):
    y = x
    z = x * 1
    return x * (2 if y is x else 3), x * (2 if z is x else 3), x * (2 if x[:] is x else 3)


@case(lambda n: (lambda v: (v, turn(n, v, v.copy())))(vector(n)), either=True)
def identity_of_two_arguments(x, y):
    return x * 2 if x is y else x * 3


@case(lambda n: (lambda v: (v, turn(n, v[1:], v[1:].copy())))(vector(n)), either=True)
def sharing_of_two_arguments(x, y):
    return x * 2 if np.shares_memory(x, y) else x * 3


@case(lambda n: (vector(n),), either=True)
def sharing_of_temporaries(x):
    y = x * 2
    return y * 1, np.shares_memory(y, y[1:]), np.may_share_memory(x, y)


@case(lambda n: (vector(n),), either=True)
def id_and_hash(x):
    try:
        hash(x)
    except TypeError as error:
        return x * (2 if id(x) == id(x) else 3), str(error)


@case(lambda n: (vector(n),))
def callable_of_an_array(x):
    return x * 2 if not callable(x) else x * 3, callable(x.sum)


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def membership(x):
    return x * (2 if 0.5 in x else 3)


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def sorted_and_extremes(x):
    return sorted(x)[0], max(x), min(x), min(x, key=abs)


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def any_and_all(x):
    return x * any(x > 1), all(each > -100 for each in x)


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def numbers_of_values(x):
    return x * int(x[0]), float(x[1]), x.item(0), x[2].item(), complex(x[0]), bool(x[0])


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def lists_of_values(x):
    return x.tolist(), list(x), x.tobytes(), x * 2


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def rounded_scalar(x):
    return x * round(x.mean()), round(x.max(), 1), round(float(x[0]))


@case(lambda n: (vector(n),))
def rounded_scalar_with_digits(x):
    return x * np.round(x.mean(), 1), np.round(x.sum())


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def math_of_a_value(x):
    return x * math.exp(x[0]), math.floor(x.sum()), math.isfinite(x[1])


@case(lambda n: (positive(n),))
def format_of_facts(x):
    return x * 2, "{} {:>5}".format(x.shape, x.size), "%s %d" % (x.dtype, x.ndim), format(x.ndim, "03d")


@case(lambda n: (vector(n),))
def len_of_everything(x):
    return x * len(x), len([x, x]), len({"a": x}), len((x,))


@case(lambda n: (matrix(n),))
def iter_and_next(x):
    rows = iter(x)
    first = next(rows)
    rest = list(rows)
    return first * 2, len(rest), next(iter([]), "none")


@case(lambda n: (vector(n),), either=True)
def copies(x):
    return copy.copy(x) * 2, copy.deepcopy(x) + 1, copy.deepcopy({"a": [x]})["a"][0] - 1


@case(lambda n: (vector(n),), either=True)
def copies_are_their_own(x):
    y = copy.copy(x)
    y[0] = 100
    return x * 1, y


@case(lambda n: (vector(n),))
def asarray_of_an_array(x):
    y = np.asarray(x)
    return y * 2, x * (2 if y is x else 3)


@case(lambda n: (vector(n),))
def asarray_with_a_type(x):
    return np.asarray(x, dtype=np.float32) * 2, np.asarray(x, dtype=np.int32), np.asarray(x, np.float16)


@case(lambda n: (vector(n),))
def array_of_an_array(x):
    y = np.array(x)
    y[0] = 9
    return y, x * 1


@case(lambda n: (vector(n),))
def array_with_options(x):
    return np.array(x, dtype=np.float32, copy=True), np.array(x, ndmin=2) * 1, np.array([x, x * 2])


@case(lambda n: (matrix(n),))
def contiguous(x):
    return np.ascontiguousarray(x.T) + 1, np.ascontiguousarray(x[:, ::2])


@case(lambda n: (matrix(n),), either=True)
def fortran(x):
    return np.asfortranarray(x) + 1


@case(lambda n: (vector(n),))
def asanyarray_and_atleast(x):
    return np.asanyarray(x) * 2, np.atleast_1d(x) * 2, np.atleast_2d(x) * 2, np.atleast_3d(x) * 1


@case(lambda n: (vector(n),), either=True)
def require(x):
    return np.require(x, np.float32, ["C"]) * 2, np.require(x, requirements=["A", "W"]) + 1


@case(lambda n: (vector(n),), either=True)
def viewed_as_another_type(x):
    return x.view(np.int32) & 0xFF, x.view() * 2


@case(lambda n: given(vector(n), dtype=turn(n, np.float32, "float64", np.dtype("int32"), float, None)))
def a_type_as_argument(x, dtype):
    return x.astype(dtype) if dtype is not None else x * 2


@case(lambda n: given(matrix(n), axis=turn(n, 0, 1, None, -1, (0, 1))))
def an_axis_as_argument(x, axis):
    return x.sum(axis=axis), x.mean(axis)


@case(lambda n: (matrix(n),))
def the_shape_is_used(x):
    rows, columns = x.shape
    return x / rows + columns, np.ones(x.shape, x.dtype) + x, x.reshape(x.shape[::-1]) * 1, x * x.shape[-1]


@case(lambda n: (vector(n),), either=True)
def vars_and_dir(x):
    return x * 2, "shape" in dir(x), "compute" in dir(x)


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def ctypes_of_an_array(x):
    return x * (2 if x.ctypes.data else 3)


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def buffer_of_an_array(x):
    return x * memoryview(x).nbytes


@case(lambda n: (vector(n), np.float32(1.5 + n % 3)), either=True)
def methods_of_a_numpy_scalar(x, a):
    return x * a.dtype.itemsize, x * (2 if isinstance(a, np.float32) else 3), x + a.astype(np.float64)
