"""Arguments of every kind, as arrays, as numbers and as neither."""

import datetime
import decimal
import fractions
import pathlib
import tempfile

import numpy as np

from tests.semantics.cases import World, case, case_of_state, given, matrix, positive, turn, vector


@case(lambda n: (np.array(n / 4, np.float32),))
def without_axes(x):
    return x * 2, x + 1, np.sin(x), x.shape


@case(lambda n: (np.array(n / 4, np.float32),), either=True)
def without_axes_in_place(x):
    y = x.copy()
    y += 1
    return y


@case(lambda n: (np.zeros((0, 3), np.float32), np.zeros(0, np.float32)), either=True)
def empty(x, y):
    return x * 2, x.sum(axis=0), x.sum(), y + 1, np.concatenate([y, y]), x.T


@case(lambda n: (vector(n, 1),))
def one_element(x):
    return x * 2, x.sum(), x[0], x.reshape(()) * 1


@case(lambda n: (matrix(n, 4, 6)[::2, ::3],))
def not_contiguous(x):
    return x * 2, x.sum(axis=0)


@case(lambda n: (vector(n, 8)[::-1], matrix(n)[::-1, ::-2]))
def negative_strides(x, y):
    return x * 2, y + 1, x[1:] - x[:-1]


@case(lambda n: (np.broadcast_to(vector(n, 3), (4, 3)), np.broadcast_to(np.float32(n), (2, 2))))
def broadcast(x, y):
    return x * 2, y + 1, x.sum(axis=0)


@case(lambda n: (np.lib.stride_tricks.sliding_window_view(vector(n, 8), 3),))
def overlapping_windows(x):
    return x.mean(axis=1), x * 2


@case(lambda n: (np.asfortranarray(matrix(n)),))
def fortran_order(x):
    return x.sum(axis=0), x @ x.T


@case(lambda n: (np.asfortranarray(matrix(n)),))
def fortran_order_is_kept(x):
    return x * 2, x + x


@case(lambda n: (matrix(n).T,))
def transposed(x):
    return x.sum(axis=1), x @ x.T


def _read_only(x):
    x.setflags(write=False)
    return x


@case(lambda n: (_read_only(vector(n)),))
def read_only(x):
    return x * 2, x.copy() + 1


@case(lambda n: (_read_only(vector(n)),), raises=True)
def read_only_that_is_written(x):
    x[0] = 1
    return x


@case_of_state()
def memory_map():
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "values"
    vector(0, 12).tofile(path)
    mapped = np.memmap(path, np.float32, "r+", shape=(3, 4))

    def function(x):
        return x * 2, x.sum(axis=1)

    def change(n):
        mapped[n % 3] = n

    return World(function, lambda n: (mapped,), change, undo=folder.cleanup)


CASES_OF_TYPES = {
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
}  # fmt: skip


@case(lambda n: (vector(n, dtype=turn(n, *CASES_OF_TYPES.values())),))
def integers_of_all_widths(x):
    return x + x, x * 2, x.sum(), x > 3


@case(lambda n: (vector(n, dtype=turn(n, np.float16, np.float32, np.float64)),))
def floats_of_all_widths(x):
    return x + 1, x * x, x.sum(), x.max()


@case(lambda n: (vector(n, dtype=turn(n, np.complex64, np.complex128)),))
def complex_of_both_widths(x):
    return x + 1, x * x, x.conj()


@case(lambda n: (vector(n, dtype=bool),))
def bools(x):
    return ~x, x.sum(), x & True, x.any(), x.all(), x.astype(np.float32), x.mean()


@case(lambda n: (vector(n).astype(">f4"), vector(n, dtype=np.int32).astype(">i4")), either=True)
def big_endian(x, k):
    return x * 2, k + 1, x.sum()


@case(lambda n: (vector(n).astype(">f4"),), either=True)
def big_endian_as_it_is(x):
    return x[1:], x.copy(), x.dtype


@case(lambda n: (vector(n, dtype=np.longdouble),), either=True)
def long_doubles(x):
    return x * 2


@case(lambda n: (vector(n), turn(n, *(kind(3) for kind in CASES_OF_TYPES.values()))), either=True)
def numpy_scalars_of_all_widths(x, k):
    return x * k


@case(lambda n: (np.float32(n / 4), np.float64(n)), either=True)
def only_numpy_scalars(a, b):
    return a * 2, a + b, np.sin(a)


@case(lambda n: (n / 4, n), either=True)
def only_python_numbers(a, k):
    return np.sin(a) * k, a + k


@case(lambda n: (vector(n, dtype=np.float64), turn(n, 2**70, -(2**65), 3)), either=True)
def huge_integers(x, k):
    return x * k


@case(lambda n: (vector(n), turn(n, True, 1, 1.0)))
def numbers_that_compare_equal(x, k):
    return x + k, (x > 0) & k if type(k) is bool else x * k


@case(lambda n: (vector(n), turn(n, 0.0, -0.0)))
def zeros_that_compare_equal(x, k):
    return np.copysign(1, x * 0 + 1) * np.copysign(np.float32(1), np.float32(k))


@case(lambda n: (vector(n), turn(n, float("nan"), float("inf"), -float("inf"), 1.0)))
def special_floats(x, k):
    return np.maximum(np.abs(x) + 1, k), (np.abs(x) + 1) * k


class MyArray(np.ndarray):
    """A subclass with something of its own."""

    def doubled(self):
        return self * 2


class MyInt(int):
    def __mul__(self, other):
        return "mine"


class MyFloat(float):
    pass


class MyStr(str):
    pass


class MyList(list):
    pass


class MyDict(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 10


@case(lambda n: (vector(n).view(MyArray),), either=True)
def subclass_of_ndarray(x):
    return x * 2, x.doubled(), x.sum(), x[1:]


@case(lambda n: (np.ma.array(vector(n), mask=vector(n) > 2),), either=True)
def masked(x):
    return x * 2, x.mean(), x.filled(0)


@case(lambda n: (np.ma.array(vector(n), mask=vector(n) > 2), vector(n)), either=True)
def masked_beside_an_array(x, y):
    return y + x, np.sum(x)


@case(lambda n: (vector(n), MyInt(n % 3)), either=True)
def subclass_of_int(x, k):
    return x * int(k), k * 2


@case(lambda n: (vector(n), MyFloat(n % 3)), either=True)
def subclass_of_float(x, k):
    return x * k, type(k).__name__


@case(lambda n: (vector(n), turn(n, MyStr("double"), MyStr("half"))), either=True)
def subclass_of_str(x, mode):
    return x * 2 if mode == "double" else x / 2


@case(lambda n: (MyList([vector(n), vector(n + 1)]),), either=True)
def subclass_of_list(arrays):
    return arrays[0] + arrays[1]


@case(lambda n: (MyDict(a=vector(n)),), either=True)
def subclass_of_dict(arrays):
    return arrays["a"] + 1


@case(lambda n: ([vector(n), vector(n + 1)], (vector(n + 2), 2.0)))
def lists_and_tuples_of_arrays(arrays, pair):
    return arrays[0] * arrays[1] + pair[0] * pair[1], len(arrays)


@case(lambda n: ([[vector(n)], [vector(n + 1), [vector(n + 2)]]],))
def nested_lists_of_arrays(nested):
    return nested[0][0] + nested[1][1][0], nested[1][0] * 2


@case(lambda n: ({"a": vector(n), "deep": {"b": [vector(n + 1)]}},))
def nested_dicts_of_arrays(nested):
    return nested["a"] + nested["deep"]["b"][0]


@case(lambda n: ({1: vector(n), (2, 3): vector(n + 1), None: 2.0},))
def dicts_with_other_keys(table):
    return table[1] * table[None] + table[2, 3]


@case(lambda n: ([1.0, 2.0, n / 4],), either=True)
def a_list_of_numbers(values):
    return np.array(values) * 2, np.sum(values), sum(values)


@case(lambda n: (vector(n, 3), [1.0, 2.0, turn(n, 0.5, 3.0)]))
def an_array_and_a_list_of_numbers(x, values):
    return x * values, np.dot(x, values), x + np.asarray(values, np.float32)


@case(lambda n: (matrix(n, 2, 2), [[1, 2], [n % 5, 4]]))
def an_array_and_a_nested_list(x, values):
    return x + values, x @ values


@case(lambda n: (vector(n), turn(n, None, 2.0)))
def none(x, k):
    return x * 2 if k is None else x * k


@case(lambda n: (vector(n), turn(n, "a", "bb", b"ccc", ...)), either=True)
def strings(x, text):
    return x * (len(text) if text is not ... else 9)


@case(lambda n: (np.array(["2024-01-01", "2024-03-0" + str(1 + n % 9)], "M8[D]"),), either=True)
def dates(x):
    return x - x[0], x + np.timedelta64(1, "D"), x.astype(str)


@case(lambda n: (vector(n), np.timedelta64(n, "s")), either=True)
def a_duration(x, d):
    return x * (d / np.timedelta64(1, "s"))


@case(lambda n: (np.array(["a", "bb", "c" * (n % 3)]), vector(n, 3)), either=True)
def string_arrays(names, x):
    return np.char.upper(names), x[names == "bb"], names.astype(object)


@case(lambda n: (np.array([1, "two", None, vector(n)], object),), either=True)
def object_arrays(things):
    return things[0], things[3] * 2


@case(lambda n: (np.array([(1.0, 2), (n, 3)], [("a", "f4"), ("b", "i4")]),), either=True)
def structured_arrays(table):
    return table["a"] * 2, table["b"].sum(), table[0]


@case(lambda n: (vector(n), datetime.datetime(2024, 1, 1 + n % 9)), either=True)
def a_datetime(x, when):
    return x * when.day


@case(lambda n: (vector(n, dtype=np.float64), turn(n, decimal.Decimal("1.5"), fractions.Fraction(1, 3))), either=True)
def other_numbers(x, k):
    return x * float(k)


@case(lambda n: (vector(n), pathlib.PurePath("a" * (1 + n % 3))), either=True)
def a_path(x, path):
    return x * len(str(path))


@case(lambda n: (vector(n), turn(n, range(3), range(1, 7, 2))), either=True)
def a_range(x, numbers):
    return x * sum(numbers), x[list(numbers)]


@case(lambda n: (vector(n), turn(n, slice(1, 3), slice(None, None, -1))), either=True)
def a_slice(x, part):
    return x[part] * 2


@case(lambda n: (vector(n), turn(n, {1, 2}, {1, 2, 3}, frozenset())), either=True)
def a_set(x, numbers):
    return x * len(numbers) + sum(numbers)


@case(lambda n: (vector(n), turn(n, bytearray(b"ab"), b"abc", memoryview(b"a"))), either=True)
def buffers(x, raw):
    return x * len(raw) + raw[0]


@case(lambda n: (vector(n), turn(n, int, float, np.float32)), either=True)
def a_class(x, kind):
    return x * kind(2.5), x.astype(kind)


class Frame:
    """What stands for a table of pandas: an object that becomes an array."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        if method != "__call__":
            return NotImplemented
        plain = [each.values if isinstance(each, Frame) else each for each in inputs]
        return Frame(getattr(ufunc, method)(*plain, **options))

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        return Frame(self.values[key])

    def mean(self):
        return self.values.mean()


@case(lambda n: (Frame(matrix(n)),), either=True)
def a_table(frame):
    return np.sin(frame), np.asarray(frame) * 2, frame.mean(), len(frame)


@case(lambda n: (vector(n, 4), Frame(matrix(n))), either=True)
def an_array_and_a_table(x, frame):
    return np.add(x, frame), x * np.asarray(frame)


class Lazy:
    """An object with `__array__` alone."""

    def __init__(self, values):
        self.values, self.asked = values, 0

    def __array__(self, dtype=None, copy=None):
        self.asked += 1
        return np.array(self.values, dtype)


@case(lambda n: (vector(n), Lazy(vector(n + 1))), either=True)
def an_object_that_becomes_an_array(x, lazy):
    return x + lazy, np.sum(lazy)


class Odd:
    """An object that answers every question."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 3.0


@case(lambda n: (vector(n), Odd()), either=True)
def an_object_with_every_attribute(x, odd):
    return x * odd.anything


@case(lambda n: (lambda v: (v, v))(vector(n)))
def the_same_array_twice(x, y):
    return x * y, x - y


@case(lambda n: (lambda v: (v, v))(vector(n)), either=True)
def the_same_array_twice_and_one_is_written(x, y):
    x += 1
    return y * 2


@case(lambda n: (lambda v: (v[:-1], v[1:]))(vector(n, 8)))
def overlapping_views(x, y):
    return x * y, y - x


@case(lambda n: (lambda v: (v[:-1], v[1:]))(vector(n, 8)), either=True)
def overlapping_views_and_one_is_written(x, y):
    x[:] = 0
    return y * 2


@case(lambda n: ((lambda v: [v, v])(vector(n)),), either=True)
def a_list_with_the_same_array_twice(pair):
    pair[0][0] = 100
    return pair[1] + 1


@case(lambda n: (vector(n, turn(n, 1, 2, 5)), vector(n, turn(n, 1, 2, 5))))
def shapes_that_change(x, y):
    return x + y, x.mean()


@case(lambda n: (turn(n, matrix(n, 2, 3), vector(n, 3), matrix(n, 1, 3)),))
def dimensions_that_change(x):
    return x.sum(axis=-1), x * np.arange(3, dtype=np.float32)


@case(lambda n: given(turn(n, vector(n), 2.0, 3, np.float32(4)), y=turn(n // 2, vector(n), 1.5)))
def arrays_or_numbers(x, y):
    return np.add(x, y), np.multiply(x, 2)


@case(lambda n: (turn(n, vector(n), vector(n).tolist()),))
def arrays_or_lists(x):
    return np.sum(np.asarray(x, np.float32)) * 2, np.asarray(x, np.float32) + 1


@case(lambda n: (vector(n), (n % 3, (turn(n, "a", "b"), None))))
def nested_tuples_of_constants(x, options):
    count, (name, nothing) = options
    return x * count + (1 if name == "a" else 2)


@case(lambda n: (np.full((2, 2, 2, 2, 2), n, np.float32),))
def many_axes(x):
    return x.sum(axis=(1, 3)), x.transpose(4, 3, 2, 1, 0)[0, 1] * 1, x.max()


@case(lambda n: (vector(n, 300),))
def more_than_a_group(x):
    return x.sum(), x.max(), x * 2, np.cumsum(x), x.argmax()


@case(lambda n: (positive(n, 64).reshape(8, 8),))
def a_larger_matrix(x):
    return x @ x, x.sum(axis=0), x.max(axis=1), x / x.sum()
