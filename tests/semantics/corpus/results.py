"""Results of every kind: what comes back is what NumPy's own call gives back."""

import types
from collections import OrderedDict, defaultdict, deque

import numpy as np

from tests.semantics.cases import World, case, case_of_state, given, matrix, positive, turn, vector


@case(lambda n: (vector(n),))
def a_scalar(x):
    return x.sum()


@case(lambda n: (vector(n),))
def scalars_of_several_types(x):
    return x.sum(), x.argmax(), (x > 0).any(), (x > 0).sum(), x.astype(np.float64).mean(), x.max() > 1


@case(lambda n: (vector(n),), within=2.0**29)  # a part of it is float32
def a_scalar_that_is_used(x):
    total = x.sum()
    mean = total / len(x)
    return mean, (x - mean) / (total * total + 1), mean.astype(np.float64)


@case(lambda n: (vector(n),), either=True)
def a_scalar_in_place(x):
    total = x.sum()
    kept = total
    total += 1
    return total, kept


@case(lambda n: (vector(n),), either=True)
def an_element_in_place(x):
    y = x * 2
    first = y[0]
    first += 10
    return first, y


@case(lambda n: (np.array(n, np.float32),), either=True)
def an_array_without_axes(x):
    return np.array(2.0, np.float32), x.reshape(()), x[...], x.copy()


@case(lambda n: (vector(n),), either=True)
def none(x):
    x * 2


@case(lambda n: (vector(n),), either=True)
def constants_only(x):
    return 1, "text", (2.0, None), [True], {"a": b"raw"}


@case(lambda n: (vector(n),))
def constants_beside_arrays(x):
    return x * 2, 1, "text", None, [2.5, True], {"shape": x.shape, "type": x.dtype}


@case(lambda n: (vector(n),))
def a_list_of_arrays(x):
    return [x * k for k in range(3)]


@case(lambda n: (vector(n),))
def a_dict_of_arrays(x):
    return {"double": x * 2, "inner": {"half": x / 2}, 3: x.sum()}


@case(lambda n: (vector(n),), either=True)
def other_containers(x):
    return OrderedDict(a=x * 2), deque([x + 1]), defaultdict(list, b=x), types.SimpleNamespace(c=x * 3)


@case(lambda n: (vector(n),), either=True)
def sets_and_ranges(x):
    return {1, 2}, frozenset("ab"), range(3), slice(1), x * 2


@case(lambda n: (vector(n),), either=True)
def the_argument_itself(x):
    return x


@case(lambda n: (vector(n), vector(n + 1)), either=True)
def the_argument_among_others(x, y):
    return x, x * 2, y


@case(lambda n: (vector(n), turn(n, True, False)), either=True)
def the_argument_sometimes(x, flag):
    return x if flag else x * 2


@case(lambda n: (matrix(n),), either=True)
def views_of_the_argument(x):
    return x[1], x.T, x.reshape(-1), x[:, ::2], x.ravel()


@case(lambda n: (matrix(n),), either=True)
def more_views_of_the_argument(x):
    return x.swapaxes(0, 1), np.squeeze(x), x[None], np.flip(x, 0), np.diagonal(x), np.broadcast_to(x, (2, 3, 4))


@case(lambda n: (vector(n),), either=True)
def nothing_but_an_argument_of_a_conversion(x):
    return np.asarray(x), x.astype(np.float32, copy=False), np.ravel(x), np.atleast_1d(x)


@case(lambda n: (matrix(n),))
def a_transposed_temporary(x):
    return (x * 2).T


@case(lambda n: (matrix(n),))
def a_slice_of_a_temporary(x):
    return (x * 2)[1:, ::2]


@case(lambda n: (matrix(n),))
def a_reversed_temporary(x):
    return (x * 2)[::-1], np.flip(x + 1)


@case(lambda n: (vector(n),), either=True)
def a_broadcast_temporary(x):
    return np.broadcast_to(x * 2, (3, 6))


@case(lambda n: (vector(n),), either=True)
def the_same_array_twice(x):
    y = x * 2
    return y, y, [y]


@case(lambda n: (vector(n),))
def equal_arrays_that_are_two(x):
    return x * 2, x * 2


@case(lambda n: (matrix(n),), either=True)
def views_of_each_other(x):
    y = x * 2
    return y, y[0], y.T, y.reshape(-1)


@case(lambda n: (vector(n),))
def copies_of_each_other(x):
    y = x * 2
    return y, y.copy(), y[:].copy()


@case(lambda n: (vector(n),), either=True)
def a_read_only_result(x):
    y = x * 2
    y.setflags(write=False)
    return y


@case(lambda n: (vector(n),))
def an_array_made_here(x):
    return np.arange(5), np.zeros((2, 2)), x * 2, np.array([1, 2, 3]), np.eye(2)


@case(lambda n: (vector(n),), either=True)
def an_array_made_here_alone(x):
    return np.arange(len(x), dtype=np.float32)


@case(lambda n: (vector(n),))
def a_numpy_scalar_made_here(x):
    return np.float32(2), np.int64(3), x * 2, np.bool_(True)


@case(lambda n: (vector(n),), either=True)
def a_generator_expression(x):
    return (x * k for k in range(3))


@case(lambda n: (vector(n),), either=True)
def an_iterator(x):
    return map(lambda v: v * 2, [x])


@case(lambda n: (vector(n),), either=True)
def a_function(x):
    def inner(y):
        return x * y

    return inner


@case(lambda n: (vector(n),), either=True)
def a_class(x):
    return np.float32, int, x * 2


@case(lambda n: (vector(n),), either=True)
def strings(x):
    return str(x.shape), repr(x.dtype), f"{len(x)}", x * 2


@case(lambda n: (vector(n, turn(n, 0, 3)),), either=True)
def an_empty_array(x):
    return x * 2, x[:0], np.zeros((0, 2), np.float32)


@case(lambda n: (vector(n),), either=True)
def empty_containers(x):
    return [], (), {}, x * 2


@case(lambda n: (matrix(n),))
def transposed_arithmetic(x):
    return x.T * 2, x.T + x.T, np.exp(x.T / 8)


@case(lambda n: (np.asfortranarray(matrix(n)), matrix(n + 1)))
def mixed_orders(f, c):
    return f + c, f.T + c.T


@case(lambda n: (np.asfortranarray(matrix(n)),))
def order_of_copies(x):
    return x.copy(), x.copy(order="F"), np.copy(x), x.astype(np.float64), np.zeros_like(x), np.empty_like(x).shape


@case(lambda n: (vector(n, 24).reshape(2, 3, 4).transpose(2, 0, 1),))
def order_of_reductions(x):
    return x.sum(axis=0), x.max(axis=1), x.mean(axis=2), np.cumsum(x, axis=1), np.sort(x, axis=0)


@case(lambda n: (matrix(n),))
def order_of_joining(x):
    return np.concatenate([x.T, x.T]), np.stack([x.T, x.T]), np.vstack([x.T, x.T]), np.hstack([x.T])


@case(lambda n: (matrix(n), matrix(n + 1)))
def order_of_products(x, y):
    return x.T @ y, x @ y.T, np.dot(x.T, y), np.einsum("ij,kj->ik", x, y), np.outer(x[0], y[0])


@case(lambda n: (matrix(n),))
def order_of_selection(x):
    return np.where(x.T > 0, x.T, 0), np.clip(x.T, -1, 1), np.maximum(x.T, 0), np.abs(x.T), -x.T


@case(lambda n: (matrix(n),), either=True)
def nested_named_views(x):
    half = x / 2
    return {"whole": half, "part": half[:2], "again": half}


@case(lambda n: (vector(n), positive(n)), either=True)
def tuples_in_tuples(x, y):
    return (x * 2, (y, (x + y,))), [[x - y]]


@case(lambda n: given(vector(n), full=turn(n, True, False)))
def another_structure_by_flag(x, full):
    if full:
        return {"x": x * 2, "total": x.sum()}
    return x * 2


@case_of_state()
def results_are_independent_of_each_other():
    kept = []

    def function(x):
        return x * 2

    def change(n):
        for each in kept:
            each[:] = -1

    def seen():
        return list(kept)

    def arguments(n):
        return (vector(n % 3),)

    world = World(function, arguments, change, seen)
    return world


@case_of_state()
def a_result_is_written_by_the_caller():
    last = []

    def function(x):
        y = x * 2
        return y, np.ones(6, np.float32)

    def call(x):
        return function(x)

    def change(n):
        for each in last:
            each += 100

    return World(call, lambda n: (vector(n),), change)
