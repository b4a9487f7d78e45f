"""What is raised is what NumPy or the function itself raises, with the same words."""

import numpy as np

from tests.semantics.cases import World, case, case_of_state, matrix, turn, vector


class OwnError(Exception):
    def __init__(self, message, values):
        super().__init__(message)
        self.values = values


@case(lambda n: (vector(n, 4), vector(n, 6)), raises=True)
def shapes_that_do_not_match(x, y):
    return x + y


@case(lambda n: (vector(n, turn(n, 4, 6)), vector(n, 6)))
def shapes_that_do_not_match_sometimes(x, y):
    return x * y + 1


@case(lambda n: (matrix(n), matrix(n)), raises=True)
def matrices_that_do_not_match(x, y):
    return x @ y


@case(lambda n: (vector(n),), raises=True)
def an_index_out_of_bounds(x):
    return x[6] * 2


@case(lambda n: (matrix(n),), raises=True)
def too_many_indices(x):
    return x[0, 0, 0]


@case(lambda n: (vector(n),), raises=True)
def a_float_as_index(x):
    return x[1.5]


@case(lambda n: (vector(n),), raises=True)
def a_string_as_index(x):
    return x["a"]


@case(lambda n: (vector(n), np.array([0, 3 + n % 5], np.int32)), either=True)
def an_index_out_of_bounds_by_its_value(x, i):
    return x[i] * 2


@case(lambda n: (matrix(n), np.array([n % 4], np.int32), np.array([n % 5], np.int32)), either=True)
def two_indices_out_of_bounds_by_their_values(x, i, j):
    return x[i, j]


@case(lambda n: (vector(n), np.array([0, -(3 + n % 5)], np.int64)), either=True)
def take_out_of_bounds_by_its_value(x, i):
    return np.take(x, i)


@case(lambda n: (vector(n), np.array([0, 3 + n % 5], np.int32)), either=True)
def assignment_out_of_bounds_by_its_value(x, i):
    y = x.copy()
    y[i] = 7
    return y


@case(lambda n: (vector(n), np.array([0, 3 + n % 5], np.int32)), either=True)
def add_at_out_of_bounds_by_its_value(x, i):
    y = x.copy()
    np.add.at(y, i, 1)
    return y


@case(lambda n: (vector(n), 3 + n % 5))
def an_integer_out_of_bounds_by_its_value(x, k):
    return x[k] * 2


@case(lambda n: (matrix(n),), raises=True)
def a_wrong_axis(x):
    return x.sum(axis=2)


@case(lambda n: (matrix(n), n % 4))
def a_wrong_axis_sometimes(x, axis):
    return np.sum(x, axis=axis)


@case(lambda n: (matrix(n),), raises=True)
def a_wrong_reshape(x):
    return x.reshape(5, 2)


@case(lambda n: (matrix(n),), raises=True)
def a_wrong_transpose(x):
    return x.transpose(0, 0)


@case(lambda n: (matrix(n),), raises=True)
def a_wrong_concatenation(x):
    return np.concatenate([x, x[:, :2]])


@case(lambda n: (matrix(n),), raises=True)
def a_wrong_stack(x):
    return np.stack([x, x[:2]])


@case(lambda n: (vector(n),), raises=True)
def a_wrong_type(x):
    return x + "text"


@case(lambda n: (vector(n),), raises=True)
def none_as_an_operand(x):
    return x * None


@case(lambda n: (vector(n),), raises=True)
def bits_of_floats(x):
    return x & 1


@case(lambda n: (vector(n, dtype=bool),), raises=True)
def minus_of_bools(x):
    return -x


@case(lambda n: (vector(n, dtype=bool),), raises=True)
def difference_of_bools(x):
    return x - x


@case(lambda n: (vector(n, dtype=np.int32),), raises=True)
def a_float_into_integers(x):
    y = x.copy()
    y += 1.5
    return y


@case(lambda n: (vector(n, dtype=np.int32),), raises=True)
def integers_to_negative_powers(x):
    return x**-1


@case(lambda n: (vector(n, dtype=np.uint8),), raises=True)
def an_integer_that_does_not_fit(x):
    return x + 300


@case(lambda n: (vector(n, dtype=np.uint8), turn(n, 1, 300, -1)))
def an_integer_that_does_not_fit_sometimes(x, k):
    return x + k


@case(lambda n: (vector(n),), raises=True)
def an_attribute_that_is_missing(x):
    return x.missing


@case(lambda n: (vector(n),), raises=True)
def a_function_that_is_missing(x):
    return np.missing(x)


@case(lambda n: (vector(n),), raises=True)
def a_name_that_is_missing(x):
    return x * missing_name  # noqa: F821


@case(lambda n: (vector(n),), raises=True)
def a_wrong_keyword(x):
    return np.sum(x, sideways=True)


@case(lambda n: (vector(n),), raises=True)
def a_wrong_number_of_arguments(x):
    return np.add(x)


@case(lambda n: (vector(n), 1), raises=True)
def wrong_arguments_of_the_function(x):
    return x


@case(lambda n: (vector(n, 0),), raises=True)
def the_largest_of_nothing(x):
    return x.max()


@case(lambda n: (vector(n),), raises=True)
def the_truth_of_an_array(x):
    return 1 if x > 0 else 2


@case(lambda n: (vector(n),), raises=True)
def float_of_an_array(x):
    return float(x)


@case(lambda n: (np.float32(n), vector(n)), raises=True)
def len_of_a_number(a, x):
    return len(a)


@case(lambda n: (vector(n), turn(n, 2, 0)))
def division_of_integers_by_zero(x, k):
    return x * (10 // k)


@case(lambda n: (vector(n), turn(n, 2.0, 0.0)))
def division_of_floats_by_zero(x, k):
    return x * (1.0 / k)


@case(lambda n: (vector(n), turn(n, 2, 1, 0)))
def a_division_whose_result_is_not_used(x, k):
    unused = 10 // k
    also = 1.5 % (k - 1)
    return x * 2


@case(lambda n: (vector(n), turn(n, 2, 1, 0)))
def a_division_whose_error_is_caught(x, k):
    try:
        unused = 10 // k
    except ZeroDivisionError:
        return x * 3
    return x * 2


@case(lambda n: (vector(n), turn(n, 2.0, -1.0)))
def root_of_a_negative_number(x, k):
    import math

    return x * math.sqrt(k)


@case(lambda n: (vector(n), turn(n, {"a": 1}, {})))
def a_key_that_is_missing(x, options):
    return x * options["a"]


@case(lambda n: (vector(n, turn(n, 6, 5)),))
def an_assertion(x):
    assert len(x) == 6, f"six are needed, not {len(x)}"
    return x * 2


@case(lambda n: (vector(n),), either=True)
def an_assertion_on_values(x):
    assert (x < 3.5).all(), "too large"
    return x * 2


@case(lambda n: (vector(n),), either=True)
def an_error_on_values(x):
    if x.max() > 3.5:
        raise ValueError(f"{x.max():.3f} is too large")
    return x * 2


@case(lambda n: (vector(n), turn(n, 1, -1)))
def an_error_on_a_number(x, k):
    if k < 0:
        raise ValueError(f"{k} is negative")
    return x * k


@case(lambda n: (vector(n),), raises=True)
def an_own_error_with_an_array(x):
    raise OwnError("with values", x * 2)


@case(lambda n: (vector(n),), raises=True)
def an_error_with_an_array_as_argument(x):
    raise ValueError("wrong", x)


@case(lambda n: (vector(n, turn(n, 6, 5)),))
def an_error_with_a_cause(x):
    try:
        return x[5] * 2 + x
    except IndexError as error:
        raise RuntimeError("too short") from error


@case(lambda n: (vector(n),), raises=True)
def not_implemented(x):
    raise NotImplementedError


@case(lambda n: (vector(n),), raises=True)
def stop_iteration(x):
    return next(iter([]))


@case(lambda n: (vector(n),), raises=True)
def unpacking_too_few(x):
    a, b = x
    return a


@case(lambda n: (vector(n),), raises=True)
def endless_recursion(x):
    def again(v, depth):
        if depth > 50:
            raise RecursionError("deep enough")
        return again(v, depth + 1)

    return again(x, 0)


@case(lambda n: (matrix(n, 3, 3) * 0,), raises=True)
def a_singular_matrix(x):
    return np.linalg.inv(x)


@case(lambda n: (matrix(n, 3, 3) * turn(n, 1, 0) + turn(n, 8, 0) * np.eye(3, dtype=np.float32),))
def a_singular_matrix_sometimes(x):
    return np.linalg.solve(x, np.ones(3, np.float32))


@case(lambda n: (matrix(n, 3, 3) * turn(n, 0, -1) + turn(n, 8, 0) * np.eye(3, dtype=np.float32),), either=True)
def a_matrix_that_is_tried(x):
    try:
        np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return x * 3
    return x * 2


@case(lambda n: (vector(n), np.array([0, 3 + n % 5], np.int32)), either=True)
def an_index_that_is_tried(x, i):
    x[i]
    return x * 2


@case(lambda n: (matrix(n),), raises=True)
def a_matrix_that_is_not_square(x):
    return np.linalg.inv(x)


@case(lambda n: (matrix(n, 3, 3),), raises=True)
def cholesky_of_a_negative_matrix(x):
    return np.linalg.cholesky(-x @ x.T - np.eye(3, dtype=np.float32))


@case(lambda n: (vector(n, dtype=np.int32),), either=True)
def bincount_of_negative_numbers(x):
    return np.bincount(x)


@case(lambda n: (matrix(n),), raises=True)
def a_wrong_einsum(x):
    return np.einsum("ij,jk", x, x)


@case(lambda n: (vector(n, 0),), raises=True)
def argmax_of_nothing(x):
    return np.argmax(x)


@case(lambda n: (vector(n),), raises=True)
def a_wrong_dtype(x):
    return x.astype("no such type")


@case(lambda n: (vector(n, 6),), raises=True)
def a_split_that_is_not_even(x):
    return np.split(x, 4)


@case(lambda n: (vector(n),), raises=True)
def a_wrong_broadcast(x):
    return np.broadcast_to(x, (4,))


@case(lambda n: (vector(n),), raises=True)
def a_wrong_assignment(x):
    y = x.copy()
    y[:3] = x
    return y


@case(lambda n: (vector(n),), raises=True)
def a_wrong_output(x):
    return np.add(x, 1, out=np.zeros(3, np.float32))


@case_of_state(raises=True)
def an_error_and_what_was_done_before():
    log = []

    def function(x):
        log.append("begun")
        raise ValueError("no")

    return World(function, lambda n: (vector(n),), seen=lambda: list(log))


@case_of_state(either=True)
def an_error_after_a_change_of_an_argument():
    def function(x, k):
        x[0] = 100
        if k:
            raise ValueError("too late")
        return x * 2

    return World(function, lambda n: (vector(n), n % 2))
