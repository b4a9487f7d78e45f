"""Overflow, division by zero, NaN and infinities: values, warnings and errors as NumPy has them."""

import numpy as np

from tests.semantics.cases import World, case, case_of_state, matrix, turn, vector

NAN, INF = np.float32(np.nan), np.float32(np.inf)


def special(n, dtype=np.float32):
    values = np.array([0, -0.0, 1, -1.5, np.nan, np.inf, -np.inf, 0.25], dtype)
    return np.roll(values, n % 8)


def largest(n, dtype):
    limits = np.iinfo(dtype)
    return np.array([limits.max, limits.min, limits.max - 1, 0, 1, 7 + n % 3], dtype)


@case(lambda n: (largest(n, turn(n, np.int8, np.int16, np.int32, np.int64)),))
def signed_overflow(x):
    return x + 1, x - 1, x * 2, -x, abs(x), x + x


@case(lambda n: (largest(n, turn(n, np.uint8, np.uint16, np.uint32, np.uint64)),))
def unsigned_overflow(x):
    return x + 1, x - 1, x * 2, -x, x + x, ~x


@case(lambda n: (largest(n, np.int32),))
def overflow_that_a_compiler_may_assume_away(x):
    return (x * 3) // 3, x + 1 > x, x - x.min() >= 0, (x + x) // 2


@case(lambda n: (largest(n, np.int32), np.int32(2**31 - 1)))
def overflow_with_a_scalar(x, k):
    return x + k, x * k


@case(lambda n: (largest(n, np.int32),))
def sums_that_overflow(x):
    return x.sum(), x.sum(dtype=np.int32), np.cumsum(x, dtype=np.int32), x.prod(dtype=np.int32)


@case(lambda n: (largest(n, np.int32),))
def extreme_integers(x):
    return x.min(), x.max(), x.argmin(), np.sort(x), x.astype(np.int64) * 2, x.astype(np.float32), x.astype(np.int8)


@case(lambda n: (vector(n, dtype=np.int32), turn(n, 31, 32, 40, 3)))
def shifts_by_the_width(x, k):
    return x << k, x >> k


@case(lambda n: (special(n),))
def comparisons_with_nan(x):
    return x < 0, x == x, x != x, x >= np.nan, np.isnan(x), np.isinf(x), np.isfinite(x), np.signbit(x)


@case(lambda n: (special(n),))
def extremes_with_nan(x):
    return x.max(), x.min(), np.nanmax(x), np.nanmin(x), np.fmax(x, 0), np.maximum(x, 0), np.minimum(x, 0)


@case(lambda n: (special(n),))
def positions_with_nan(x):
    return x.argmax(), x.argmin(), np.sort(x), np.argsort(x, kind="stable")


@case(lambda n: (special(n),))
def rounding_of_special_values(x):
    return np.floor(x), np.ceil(x), np.rint(x), np.trunc(x), np.round(x)


@case(lambda n: (special(n),))
def replacing_special_values(x):
    return np.nan_to_num(x), np.where(np.isnan(x), 0, x), np.clip(x, -1, 1), np.abs(x), -x, np.copysign(1, x)


@case(lambda n: (special(n),))
def nan_in_reductions(x):
    finite = np.where(np.isinf(x), 1, x).astype(np.float32)
    return finite.sum(), finite.mean(), np.nansum(finite), np.nanmean(finite), np.cumsum(finite)


@case(lambda n: (vector(n),))
def division_by_zero(x):
    with np.errstate(all="ignore"):
        return x / 0, 1 / (x - x), x // 0, x % 0, x / -0.0


@case(lambda n: (vector(n, dtype=np.int32), np.array([0, 1, 2, 0, -1, 3], np.int32)))
def integer_division_by_zero(x, y):
    with np.errstate(all="ignore"):
        return x // y, x % y


@case(lambda n: (vector(n),))
def invalid_operations(x):
    with np.errstate(all="ignore"):
        return np.sqrt(x - 10), np.log(x - 10), np.arcsin(x + 10), (x * 0) / 0, np.arctanh(x * 0 + 1)


@case(lambda n: (vector(n),))
def overflow_of_floats(x):
    with np.errstate(all="ignore"):
        return np.exp(x * 100), (x + 10) * np.float32(3e38), np.float32(1e30) ** 2 * x


@case(lambda n: (vector(n),))
def constants_that_are_special(x):
    with np.errstate(all="ignore"):
        return x * np.nan, x * np.inf, np.floor(x * np.nan), np.rint(x * np.nan), x // np.nan, x + np.inf - np.inf


@case(lambda n: (vector(n, 2),))
def too_few_for_a_variance(x):
    with np.errstate(all="ignore"):
        return x[:1].var(ddof=0), (x[:1] - x[:1]) / 0


@case(lambda n: (vector(n, 1),), either=True)
def variance_with_a_warning(x):
    return x.std(ddof=1)


@case(lambda n: (vector(n, 0),), either=True)
def mean_of_nothing(x):
    return x.mean()


@case(lambda n: (vector(n),), either=True)
def a_warning_for_a_logarithm(x):
    return np.log(x - x)


@case(lambda n: (vector(n),), either=True)
def a_warning_for_a_division(x):
    return 1 / (x - x)


@case(lambda n: (vector(n),), either=True)
def a_warning_sometimes(x):
    return np.sqrt(x + 3)


@case(lambda n: (special(n),), either=True)
def a_warning_for_a_cast(x):
    return x.astype(np.int32)


@case(lambda n: (vector(n), turn(n, 0.0, 1.0)), either=True)
def a_warning_by_a_number(x, k):
    return x / k


@case(lambda n: (vector(n),), either=True)
def errstate_raises(x):
    with np.errstate(divide="raise"):
        return 1 / (x - x)


@case(lambda n: (vector(n),), either=True)
def errstate_raises_and_is_caught(x):
    with np.errstate(divide="raise", invalid="raise"):
        try:
            return 1 / (x - x)
        except FloatingPointError:
            return x * 7


@case(lambda n: (vector(n),), either=True)
def errstate_raises_sometimes(x):
    with np.errstate(invalid="raise"):
        return np.sqrt(x + 3)


@case_of_state(either=True)
def errstate_around_the_call():
    kept = np.geterr()

    def function(x):
        return np.sqrt(x + 3)

    def change(n):
        np.seterr(invalid=turn(n, "ignore", "raise", "warn"))

    return World(function, lambda n: (vector(n),), change, undo=lambda: np.seterr(**kept))


@case_of_state(either=True)
def errstate_calls():
    heard = []
    kept = np.geterr()
    kept_call = np.geterrcall()

    def function(x):
        return np.sqrt(x + 3)

    def change(n):
        np.seterrcall(lambda kind, flag: heard.append(kind))
        np.seterr(invalid="call")

    def undo():
        np.seterr(**kept)
        np.seterrcall(kept_call)

    return World(function, lambda n: (vector(n),), change, seen=lambda: list(heard), undo=undo)


@case(lambda n: (matrix(n, 3, 3),), either=True)
def nan_in_a_product(x):
    y = x.copy()
    y[0, 0] = np.nan
    return y @ x, np.dot(y[0], x[0]), y.sum(axis=0)


@case(lambda n: (special(n), special(n + 1)))
def pairs_of_special_values(x, y):
    with np.errstate(all="ignore"):
        return x + y, x * y, x - y, np.arctan2(x, y), np.hypot(x, y), np.logaddexp(x, y), np.fmod(x, 2)


@case(lambda n: (np.array([1e-40, -1e-45, 1e-38, 0, 2e-38], np.float32),), either=True)
def subnormals(x):
    return x == 0, x > 0, x.view(np.int32)


@case(lambda n: (vector(n),))
def whole_floats(x):
    return (x * 100).astype(np.int32), (x * 1000).astype(np.int16), np.abs(x * 8).astype(np.uint8)


@case(lambda n: (np.array([0.5, 1.5, 2.5, -0.5, -1.5, n / 2], np.float32),))
def halves_are_rounded_to_even(x):
    return np.rint(x), np.round(x), np.round(x / 10, 1), np.floor(x + 0.5)


@case(lambda n: (vector(n, dtype=np.int64) * 2**40,))
def large_integers(x):
    return x + 1, x // 7, x % 97, x >> 3, x.sum(), x.max(), x == x + 1, x / 2
