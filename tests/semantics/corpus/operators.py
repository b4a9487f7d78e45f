"""Operators on arrays, numbers and both, and the functions that Python has for them."""

import math
import operator
from functools import reduce

import numpy as np

from tests.semantics.cases import case, matrix, positive, turn, vector


@case(lambda n: (vector(n), vector(n + 1)))
def add(x, y):
    return x + y


@case(lambda n: (vector(n), vector(n + 1)))
def subtract_both_ways(x, y):
    return x - y, y - x, 1 - x, x - 1


@case(lambda n: (vector(n), positive(n + 1)))
def divide(x, y):
    return x / y, 2 / y, x / 3


@case(lambda n: (vector(n), positive(n + 1)))
def floor_divide_and_modulo(x, y):
    return x // y, x % y, x // 2, x % 3


@case(lambda n: (vector(n, dtype=np.int32), positive(n, dtype=np.int32)))
def integers_floor_divide_and_modulo(x, y):
    return x // y, x % y, x // -3, x % -5, 100 // y, -7 % y


@case(lambda n: (vector(n), positive(n + 1)))
def divmod_of_arrays(x, y):
    return divmod(x, y)


@case(lambda n: (vector(n),))
def powers(x):
    return x**2, x**3, x**0, pow(x, 2)


@case(lambda n: (positive(n),))
def powers_of_fractions(x):
    return x**0.5, x**-1, 2**x, x**2.5


@case(lambda n: (vector(n, dtype=np.int32),))
def powers_of_integers(x):
    return x**2, x**3, x**0, x ** np.int32(5)


@case(lambda n: (matrix(n), matrix(n + 1, 4, 3)))
def matrix_multiply(x, y):
    return x @ y, y @ x


@case(lambda n: (matrix(n), vector(n, 4), vector(n, 3)))
def matrix_times_vector(x, v, w):
    return x @ v, w @ x, w @ x @ v


@case(lambda n: (vector(n),))
def signs(x):
    return -x, +x, abs(x), -(-x)


@case(lambda n: (vector(n, dtype=np.int32), vector(n + 1, dtype=np.int32)))
def bits(x, y):
    return x & y, x | y, x ^ y, ~x, x & 7, 3 | x


@case(lambda n: (vector(n, dtype=np.int32), np.arange(6, dtype=np.int32)))
def shifts(x, y):
    return x << y, x >> y, x << 2, x >> 1, 1 << y


@case(lambda n: (vector(n, dtype=bool), vector(n + 1, dtype=bool)))
def booleans(x, y):
    return x & y, x | y, x ^ y, ~x, x == y, x != y, x < y


@case(lambda n: (vector(n), vector(n + 1)))
def comparisons(x, y):
    return x < y, x <= y, x > y, x >= y, x == y, x != y, x < 0, 0 <= x, x == 1


@case(lambda n: (vector(n), vector(n + 1)))
def comparisons_combined(x, y):
    return (x > 0) & (y > 0), (x > y) | ~(x < 0)


@case(lambda n: (vector(n),))
def add_in_place_to_a_temporary(x):
    y = x * 2
    y += 1
    y -= x
    y *= 3
    y /= 2
    return y


@case(lambda n: (positive(n),))
def other_operators_in_place(x):
    y = x + 1
    y //= 2
    z = x + 3
    z %= 2
    w = x.copy()
    w **= 2
    return y, z, w


@case(lambda n: (vector(n, dtype=np.int32),))
def bits_in_place(x):
    y = x.copy()
    y &= 15
    y |= 4
    y ^= 9
    y <<= 2
    y >>= 1
    return y


@case(lambda n: (matrix(n, 3, 3), matrix(n + 1, 3, 3)))
def matrix_multiply_in_place(x, y):
    z = x.copy()
    z @= y
    return z


@case(lambda n: (vector(n), vector(n + 1)))
def functions_of_operator(x, y):
    return operator.add(x, y), operator.mul(x, 2), operator.neg(x), operator.getitem(x, 1), operator.le(x, y)


@case(lambda n: (vector(n),))
def in_place_functions_of_operator(x):
    y = x.copy()
    y = operator.iadd(y, 1)
    return operator.imul(y, 2)


@case(lambda n: (vector(n), vector(n + 1), vector(n + 2)))
def reduce_with_an_operator(x, y, z):
    return reduce(operator.mul, [x, y, z])


@case(lambda n: (vector(n),))
def sum_of_a_list(x):
    return sum([x, x * 2, x * 3]), sum([x, x], x)


@case(lambda n: (matrix(n),))
def sum_over_rows(x):
    return sum(x)


@case(lambda n: (vector(n), 3))
def python_integer(x, k):
    return x * k + k


@case(lambda n: (vector(n), n - 20))
def python_integer_that_changes(x, k):
    return x * k + 1


@case(lambda n: (vector(n), n / 4))
def python_float_that_changes(x, k):
    return x * k + 1


@case(lambda n: (vector(n, dtype=np.int32), n - 20))
def integers_and_an_integer(x, k):
    return x * k, x + k, x > k


@case(lambda n: (vector(n, dtype=np.uint8), n % 5))
def bytes_and_an_integer(x, k):
    return x + k, x * k


@case(lambda n: (vector(n, dtype=np.int32), 0.5 + n % 3))
def integers_and_a_float(x, k):
    return x * k


@case(lambda n: (vector(n), turn(n, True, False)))
def a_bool_in_arithmetic(x, flag):
    return x * flag + flag


@case(lambda n: (vector(n, dtype=bool), 2))
def bools_with_a_number(x, k):
    return x * k, x + 1, x * 1.5


@case(lambda n: (vector(n), complex(n % 3, 1)))
def python_complex(x, k):
    return x * k


@case(lambda n: (vector(n), np.float32(n)))
def numpy_scalar_of_the_same_type(x, k):
    return x * k + k


@case(lambda n: (vector(n), np.float64(n)))
def numpy_scalar_that_is_wider(x, k):
    return x * k


@case(lambda n: (vector(n, dtype=np.int16), np.int32(n)))
def numpy_integer_that_is_wider(x, k):
    return x * k


@case(lambda n: (vector(n), 1.5 + n % 4))
def arithmetic_of_python_numbers(x, a):
    b = a * 2 + 1
    c = b / 3 - a
    d = -c + abs(a)
    return x * b + c, d


@case(lambda n: (vector(n), 1.5 + n % 4))
def math_of_python_numbers(x, a):
    return x * math.sqrt(a) + math.exp(-a) * math.sin(a), x * math.pi


@case(lambda n: (vector(n), 2.7 + n % 4))
def rounding_of_python_numbers(x, a):
    return x * int(a), x * round(a), x * math.floor(a), x + math.ceil(a)


@case(lambda n: (vector(n), 7 + n % 4))
def whole_arithmetic_of_python_numbers(x, k):
    return x * (k // 2), x * (k % 3), x + (k << 2), x - (k & 5), x + divmod(k, 3)[1], x * k**2


@case(lambda n: (vector(n), 2.0 + n % 3, 3.0))
def min_and_max_of_python_numbers(x, a, b):
    return x * min(a, b), x + max(a, b)


@case(lambda n: (vector(n), -1.0 + n % 3))
def a_python_number_decides(x, a):
    return x * 2 if a > 0 else x * 3


@case(lambda n: (vector(n), -2 + n % 5))
def a_python_integer_decides(x, k):
    if k > 0:
        return x * k
    return x - k


@case(lambda n: (vector(n), n % 4), either=True)
def a_python_integer_counts(x, steps):
    for _ in range(steps):
        x = x * 2 + 1
    return x


@case(lambda n: (vector(n), 0.0 + n % 3))
def chained_comparison_of_numbers(x, a):
    return x + 1 if 0 < a <= 1 else x + 2


@case(lambda n: (vector(n), vector(n + 1)), raises=True)
def abs_and_round(x, y):
    return abs(x - y), round(x), round(y, 1)


@case(lambda n: (np.array(n / 2, np.float32), vector(n)))
def array_without_axes(a, x):
    return a * x, a + 1, a * a, -a


@case(lambda n: (matrix(n), vector(n, 4), vector(n, 3)))
def broadcasting(x, row, column):
    return x + row, x * column[:, None], row + column[:, np.newaxis]


@case(lambda n: (vector(n), vector(n, dtype=np.int32)))
def mixed_types(x, k):
    return x + k, k * x, x / k.astype(np.float32) if False else k / 2


@case(lambda n: (vector(n, dtype=np.int8), vector(n, dtype=np.int16), vector(n, dtype=np.uint8)))
def mixed_widths(a, b, c):
    return a + b, b * c, a + c, a - np.int8(3)


@case(lambda n: (vector(n, dtype=np.complex64),))
def complex_arithmetic(z):
    return z * z, z + 1, z.real * 1, z.imag + 0, np.abs(z), z.conj()


@case(lambda n: (vector(n, dtype=np.float64), vector(n + 1, dtype=np.float64)))
def doubles(x, y):
    return x * y + 1, x - y


@case(lambda n: (vector(n, dtype=np.float16),))
def halves(x):
    return x * 2 + 1, x * x


@case(lambda n: (vector(n, dtype=np.int64), vector(n + 1, dtype=np.int64)))
def long_integers(x, y):
    return x * y, x + 10**12, x - y, x // 3
