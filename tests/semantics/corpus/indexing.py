"""Reading and writing parts of arrays, in every form that NumPy has."""

import numpy as np

from tests.semantics.cases import case, matrix, positive, turn, vector


def cube(n, dtype=np.float32):
    return vector(n, 24, dtype).reshape(2, 3, 4)


@case(lambda n: (vector(n),))
def one_element(x):
    return x[0], x[-1], x[2] * 2


@case(lambda n: (matrix(n),))
def one_element_of_a_matrix(x):
    return x[1, 2], x[0][1], x[-1, -1], x[(2, 0)]


@case(lambda n: (vector(n, 8),))
def slices_of_a_temporary(x):
    y = x + 1
    return y[1:4] * 1, y[::2] * 1, y[::-1] * 1, y[5:1:-2] * 1, y[:0] * 1, y[100:] * 1, y[-3:] * 1


@case(lambda n: (vector(n, 8),), either=True)
def slices_as_views(x):
    return x[1:4], x[::2], x[::-1]


@case(lambda n: (matrix(n),))
def rows_and_columns(x):
    return x[0] + 1, x[:, 1] + 1, x[1:, :2] + 1, x[..., -1] + 1, x[::-1, ::-1] + 1


@case(lambda n: (cube(n),))
def ellipsis_and_new_axes(x):
    return x[..., 0] * 1, x[0, ...] * 1, x[:, None] * 1, x[..., None, 2] * 1, x[None, ..., np.newaxis] * 1


@case(lambda n: (matrix(n),))
def slice_objects(x):
    rows, columns = slice(0, 2), slice(None, None, 2)
    return x[rows, columns] + 1, x[np.s_[1:, :3]] + 1, x[np.index_exp[..., 1]] + 1


@case(lambda n: (vector(n),))
def a_list_as_index(x):
    return x[[0, 2, 2, -1]], x[[]], x[[True, False, True, False, True, False]]


@case(lambda n: (matrix(n),))
def lists_as_indices(x):
    return x[[0, 2]], x[[0, 1], [2, 3]], x[:, [3, 0]], x[[[0], [2]], [1, 2]], x[[0, 2]][:, [1, 3]]


@case(lambda n: (matrix(n),))
def np_ix(x):
    return x[np.ix_([0, 2], [1, 3])]


@case(lambda n: (vector(n), np.array([3, 0, 5, -1, n % 6], np.int32)))
def an_array_as_index(x, i):
    return x[i], x.take(i), np.take(x, i)


@case(lambda n: (matrix(n), np.array([n % 3, 2, 0], np.int64), np.array([1, n % 4, -1], np.int64)))
def two_arrays_as_indices(x, i, j):
    return x[i, j], x[i], x[:, j], x[i[:, None], j]


@case(lambda n: (vector(n), vector(n + 1)), stays_on_numpy="cannot be traced")
def a_mask_as_index(x, y):
    return x[y > 0]


@case(lambda n: (vector(n), vector(n + 1)))
def a_mask_that_is_summed(x, y):
    return np.where(y > 0, x, 0).sum(), (x * (y > 0)).sum(), (y > 0).sum()


@case(lambda n: (vector(n, 24), turn(n, 1, 2, 3)), either=True)
def an_integer_argument_as_index(x, k):
    return x[k], x[k:], x[:-k], x[::k]


@case(lambda n: (vector(n), np.int64(n % 6)))
def a_numpy_integer_as_index(x, k):
    return x[k] * 2


@case(lambda n: (matrix(n),))
def an_element_of_an_element(x):
    return [row[1] for row in x]


@case(lambda n: (vector(n),))
def assign_an_element(x):
    y = x.copy()
    y[0] = 7
    y[-1] = x[1]
    return y


@case(lambda n: (vector(n, 8),))
def assign_slices(x):
    y = x.copy()
    y[1:3] = 0
    y[4::2] = x[:2]
    y[::-1] = y.copy()
    return y


@case(lambda n: (matrix(n), vector(n, 4)))
def assign_rows_and_columns(x, row):
    y = x.copy()
    y[0] = row
    y[:, 1] = 5
    y[1:, 2:] = x[:2, :2]
    y[..., -1] *= 2
    return y


@case(lambda n: (matrix(n),))
def augmented_assignment_to_slices(x):
    y = x.copy()
    y[0] += 1
    y[:, 0] *= 2
    y[1:, 1:] -= x[:2, :3]
    y[2, 3] /= 4
    y[::2] **= 2
    return y


@case(lambda n: (vector(n),))
def assign_by_a_mask(x):
    y = x.copy()
    y[y > 0] = 0
    y[x < -2] = -9
    return y


@case(lambda n: (vector(n),), either=True)
def augmented_assignment_by_a_mask(x):
    y = x.copy()
    y[x > 0] *= 2
    y[y < 0] += 1
    return y


@case(lambda n: (vector(n), np.array([4, 0, n % 6], np.int32)))
def assign_by_indices(x, i):
    y = x.copy()
    y[i] = 9
    y[[1, 2]] = [3, 4]
    return y


@case(lambda n: (vector(n), np.array([4, 0, 4], np.int32)))
def augmented_assignment_counts_repeated_indices_once(x, i):
    y = x.copy()
    y[i] += 1
    return y


@case(lambda n: (vector(n), np.array([4, 0, 4, n % 6], np.int32)))
def add_at(x, i):
    y = x.copy()
    np.add.at(y, i, 1)
    return y


@case(lambda n: (matrix(n),), either=True)
def a_view_is_written_through(x):
    y = x.copy()
    row = y[1]
    row[:] = 0
    row += 3
    return y, row


@case(lambda n: (matrix(n),), either=True)
def a_transposed_view_is_written_through(x):
    y = x.copy()
    y.T[0] = 1
    y.reshape(-1)[::5] = 8
    return y


@case(lambda n: (matrix(n),))
def a_view_sees_what_is_written_later(x):
    y = x.copy()
    first = y[0]
    y += 1
    y[0, 0] = 100
    return first * 2


@case(lambda n: (vector(n),))
def views_that_overlap(x):
    y = x.copy()
    y[1:] += y[:-1]
    return y


@case(lambda n: (vector(n),))
def swap_by_slices(x):
    y = x.copy()
    y[[0, 5]] = y[[5, 0]]
    y[1], y[2] = y[2], y[1]
    return y


@case(lambda n: (vector(n),))
def swap_of_views_is_not_a_swap(x):
    y = x.copy()
    y[:3], y[3:] = y[3:], y[:3]
    return y


@case(lambda n: (np.zeros((4, 4), np.float32), vector(n, 4)))
def fill_an_argument_that_is_copied(z, v):
    y = z.copy()
    np.fill_diagonal(y, v)
    return y


@case(lambda n: (vector(n),))
def assign_to_an_array_that_is_made_here(x):
    out = np.empty_like(x)
    out[:] = 1
    out[::2] = x[::2]
    return out


@case(lambda n: (matrix(n),), either=True)
def assign_in_a_loop(x):
    out = np.zeros((3, 4), x.dtype)
    for i in range(3):
        for j in range(0, 4, 2):
            out[i, j] = x[i, j] * (i + j)
    return out


@case(lambda n: (vector(n),), either=True)
def assign_with_another_type(x):
    y = np.zeros(6, np.int32)
    y[:] = x
    return y


@case(lambda n: (vector(n), matrix(n, 2, 6)))
def assign_broadcasts(x, y):
    z = y.copy()
    z[:] = x
    z[:, 0] = 4
    return z


@case(lambda n: (vector(n),))
def del_of_a_name(x):
    y = x * 2
    z = y + 1
    del y
    return z


@case(lambda n: (vector(n),))
def unpack_elements(x):
    a, b, *rest = x
    return a + b, len(rest)


@case(lambda n: (matrix(n),))
def unpack_rows(x):
    first, *middle, last = x
    return first + last, middle[0] * 2


@case(lambda n: (matrix(n, 3, 2),))
def unpack_nested(x):
    (a, b), (c, d), _ = x
    return a * d - b * c


@case(lambda n: (matrix(n, 2, 5),))
def unpack_transposed(x):
    low, high, *_ = x.T
    return low + high


@case(lambda n: (matrix(n),))
def iterate_over_rows(x):
    total = 0
    for row in x:
        total = total + row * 2
    return total


@case(lambda n: (matrix(n),))
def iterate_with_enumerate_and_zip(x):
    return [row * number + other for number, (row, other) in enumerate(zip(x, x[::-1]))]


@case(lambda n: (vector(n),))
def reversed_array(x):
    return list(reversed(x))


@case(lambda n: (matrix(n),))
def flat_and_ravel(x):
    return x.ravel() + 1, x.flatten(), np.ravel(x) * 2, x.reshape(-1)[3:] * 1


@case(lambda n: (matrix(n),), stays_on_numpy="writes to its argument")
def an_argument_is_written(x):
    x[0] = 0
    return x * 2


@case(lambda n: (vector(n),), stays_on_numpy="writes to its argument")
def an_argument_is_added_to(x):
    x += 1
    return x


@case(lambda n: (vector(n),), stays_on_numpy="writes to its argument")
def an_argument_is_written_and_nothing_returned(x):
    x *= 2


@case(lambda n: (vector(n), np.zeros(6, np.float32)), stays_on_numpy="writes to its argument")
def an_output_argument(x, out):
    np.multiply(x, 2, out=out)
    return out


@case(lambda n: (positive(n), np.zeros(6, np.float32)), stays_on_numpy="writes to its argument")
def an_output_argument_that_is_not_returned(x, out):
    out[:] = np.sqrt(x)
    return x.sum()


@case(lambda n: (vector(n),))
def choose_and_select(x):
    return np.choose([0, 1, 0, 1, 0, 1], [x, -x]), np.select([x < 0, x > 1], [x - 1, x + 1], 0)


@case(lambda n: (matrix(n), np.array([[n % 4], [1], [0]], np.int64)))
def along_an_axis(x, i):
    y = x.copy()
    np.put_along_axis(y, i, 99, axis=1)
    return np.take_along_axis(x, i, axis=1), y


@case(lambda n: (vector(n), vector(n + 1)))
def put_and_place_and_copyto(x, y):
    a, b, c, d = x.copy(), x.copy(), x.copy(), x.copy()
    np.put(a, [0, 2], [7, 8])
    np.copyto(b, y, where=y > 0)
    np.putmask(c, c > 0, 5)
    d.fill(2)
    return a, b, c, d
