"""Functions inside of functions, and the ways in which arguments reach them."""

import functools
import itertools
import operator

import numpy as np

from tests.semantics.cases import World, case, case_of_state, given, matrix, turn, vector


def _double(x):
    return x * 2


def _scaled(x, by=2, *, offset=1):
    return x * by + offset


def _all_of_them(*arrays, **named):
    total = 0
    for each in arrays:
        total = total + each
    for name in sorted(named):
        total = total + named[name] * len(name)
    return total


@case(lambda n: (vector(n),))
def a_helper(x):
    return _double(x) + _double(_double(x))


@case(lambda n: (vector(n),))
def defaults_and_keyword_only(x):
    return _scaled(x), _scaled(x, 3), _scaled(x, offset=5), _scaled(x, by=4, offset=0)


@case(lambda n: (vector(n),))
def default_of_the_function_itself(x, by=2.5, *, offset=1):
    return x * by + offset


@case(lambda n: given(vector(n), by=turn(n, 2, 3.5), offset=n % 3))
def keywords(x, by, *, offset):
    return x * by + offset


@case(lambda n: given(x=vector(n), y=vector(n + 1)))
def arrays_as_keywords(x, y):
    return x - y


@case(lambda n: (vector(n), vector(n + 1), vector(n + 2)))
def starred_parameters(*arrays):
    return sum(arrays), len(arrays)


@case(lambda n: tuple(vector(n + k) for k in range(1 + n % 3)))
def number_of_arguments_changes(*arrays):
    return sum(arrays)


@case(lambda n: given(a=vector(n), bb=vector(n + 1)))
def double_starred_parameters(**named):
    return _all_of_them(**named)


@case(lambda n: given(**{turn(n, "a", "bb"): vector(n), "x": vector(n + 1)}))
def names_of_keywords_change(x, **named):
    return {name: each * len(name) + x for name, each in named.items()}


@case(lambda n: (vector(n), vector(n + 1)))
def starred_calls(x, y):
    pair = [x, y]
    return _all_of_them(*pair, x), _all_of_them(*pair, **{"a": x, "bb": y}), _scaled(*[x, 3], **{"offset": 2})


@case(lambda n: (vector(n), 2))
def positional_only(x, by, /):
    return x * by


@case(lambda n: (vector(n),))
def lambdas(x):
    square = lambda v: v * v  # noqa: E731
    return square(x), (lambda a, b=2: a * b)(x)


@case(lambda n: (vector(n), turn(n, 2, 3)))
def closures(x, k):
    def scaled(v):
        return v * k + x

    return scaled(x), scaled(1)


@case(lambda n: (vector(n),))
def late_binding(x):
    functions = [lambda v: v * k for k in range(3)]  # noqa: B023
    bound = [lambda v, k=k: v * k for k in range(3)]
    return [each(x) for each in functions], [each(x) for each in bound]


@case(lambda n: (vector(n),))
def nonlocal_names(x):
    count = 0

    def add(v):
        nonlocal count
        count += 1
        return v + count

    return add(x), add(x), count


@case(lambda n: (vector(n), turn(n, 2, 3)))
def recursion(x, depth):
    return x if depth == 0 else recursion(x * 2, depth - 1) + 1


@case(lambda n: (matrix(n),))
def mutual_recursion(x):
    def even(v, k):
        return v if k == 0 else odd(v * 2, k - 1)

    def odd(v, k):
        return even(v + 1, k - 1)

    return even(x, 4)


def _twice(function):
    @functools.wraps(function)
    def inside(*arguments, **named):
        return function(function(*arguments, **named), **named)

    return inside


@_twice
def _plus(x, by=1):
    return x + by


@case(lambda n: (vector(n),))
def decorated_helper(x):
    return _plus(x), _plus(x, by=3), _plus.__name__


@case(lambda n: (vector(n), turn(n, 1, 2)))
@_twice
def decorated_itself(x, by=1):
    return x * by


@case(lambda n: (vector(n),))
def partials(x):
    scaled = functools.partial(_scaled, by=3)
    shifted = functools.partial(scaled, offset=turn(0, 5))
    return scaled(x), shifted(x), functools.partial(np.sum, axis=0)(x)


@case(lambda n: (vector(n), vector(n + 1)))
def reduce_and_accumulate(x, y):
    return functools.reduce(lambda a, b: a * b, [x, y, x]), list(itertools.accumulate([x, y, x], operator.add))


@case(lambda n: (vector(n), vector(n + 1)))
def itertools_functions(x, y):
    pairs = [a * b for a, b in itertools.combinations([x, y, x + y], 2)]
    chained = [each + 1 for each in itertools.chain([x], [y])]
    product = [a + b for a, b in itertools.product([x], [y, x])]
    zipped = [a if b is None else a * b for a, b in itertools.zip_longest([x, y], [x])]
    return pairs, chained, product, zipped, list(itertools.islice([x, y], 1))


@case(lambda n: (vector(n),))
def map_and_filter(x):
    return list(map(_double, [x, x + 1])), [each * x for each in filter(None, [0, 1, 2])]


@case(lambda n: (matrix(n),))
def map_over_rows(x):
    return list(map(np.sum, x)), np.array([1, 2, 3]) if False else [*map(_double, x)]


def _count_up(x, steps):
    for number in range(steps):
        got = yield x * number
        if got is not None:
            x = got
    return steps


@case(lambda n: (vector(n),))
def generators_consumed_inside(x):
    return list(_count_up(x, 3)), sum(_count_up(x, 4))


@case(lambda n: (vector(n),))
def generator_with_send(x):
    running = _count_up(x, 3)
    first = next(running)
    second = running.send(x + 1)
    try:
        last = [next(running), next(running)]
    except StopIteration as stop:
        last = stop.value
    return first, second, last


@case(lambda n: (vector(n),))
def yield_from(x):
    def both():
        steps = yield from _count_up(x, 2)
        yield x + steps

    return list(both())


@case(lambda n: (vector(n), turn(n, _double, _plus, np.abs)))
def a_function_as_argument(x, function):
    return function(x) + 1


@case(lambda n: (vector(n), turn(n, np.add, np.multiply)))
def a_ufunc_as_argument(x, ufunc):
    return ufunc(x, 2), ufunc.reduce(x)


@case(lambda n: (vector(n), turn(n, lambda v: v * 2, lambda v: v * 3)))
def a_lambda_as_argument(x, function):
    return function(x)


@case(lambda n: (vector(n), {"square": lambda v: v * v}, "square"))
def a_table_of_functions(x, table, name):
    return table[name](x)


@case(lambda n: (vector(n), turn(n, "tanh", "sin", "abs")))
def a_function_by_name(x, name):
    return getattr(np, name)(x)


@case(lambda n: (vector(n), turn(n, "sum", "max", "min")))
def a_method_by_name(x, name):
    return getattr(x, name)()


@case(lambda n: (vector(n),))
def functions_of_functions(x):
    def composed(*functions):
        return lambda v: functools.reduce(lambda a, f: f(a), functions, v)

    return composed(np.abs, np.sqrt, _double)(x)


@case(lambda n: (vector(n),))
def f_strings(x):
    return x * 2, f"{x.shape} {x.dtype} {len(x)!r:>4} {1 / 3:.3f}"


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def f_string_of_a_value(x):
    return x * 2, f"{x.max():.2f}"


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def f_string_of_an_array(x):
    return x * 2, f"{x}", repr(x), str(x[:2])


@case(lambda n: (vector(n),), either=True)
def printed_constant(x):
    print("computing", x.shape)
    return x * 2


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def printed_values(x):
    print("largest", x.max(), x)
    return x * 2


@case_of_state(stays_on_numpy="changes")
def mutable_default():
    def function(x, seen=[]):  # noqa: B006
        seen.append(len(seen))
        return x * len(seen)

    return World(function, lambda n: (vector(n),), seen=lambda: function.__defaults__)


@case_of_state(either=True)
def default_changed_by_others():
    def function(x, by=2.0, *, offset=1.0):
        return x * by + offset

    def change(n):
        function.__defaults__ = (turn(n, 2.0, 3.0, 4),)
        function.__kwdefaults__["offset"] = turn(n // 2, 1.0, 5.0)

    return World(function, lambda n: (vector(n),), change)


@case_of_state()
def default_array_written_by_others():
    table = np.zeros(6, np.float32)

    def function(x, offset=table):
        return x * 2 + offset

    def change(n):
        table[n % 6] += 1

    return World(function, lambda n: (vector(n),), change)


@case_of_state(either=True)
def attribute_of_a_function():
    def function(x):
        function.calls += 1
        return x * function.calls

    function.calls = 0
    return World(function, lambda n: (vector(n),), seen=lambda: function.calls)


@case_of_state(either=True)
def attribute_of_a_function_read():
    def function(x):
        return x * function.factor

    function.factor = 1

    def change(n):
        function.factor = turn(n, 1, 2.5, 3)

    return World(function, lambda n: (vector(n),), change)


@case_of_state(either=True)
def lru_cache_of_a_table():
    setting = {"size": 1}

    @functools.lru_cache
    def table(size):
        return np.full(6, size, np.float32)

    def function(x):
        return x * table(setting["size"])

    def change(n):
        setting["size"] = 1 + n % 3

    return World(function, lambda n: (vector(n),), change, seen=lambda: table.cache_info())


@case_of_state(either=True)
def hand_written_cache():
    cache = {}

    def function(x):
        key = x.shape
        if key not in cache:
            cache[key] = np.arange(x.size, dtype=np.float32)
        return x + cache[key]

    return World(function, lambda n: (vector(n, turn(n, 4, 6)),), seen=lambda: dict(cache))


@case_of_state(either=True)
def partial_as_the_function():
    def scaled(x, by, offset=0.0):
        return x * by + offset

    function = functools.partial(scaled, by=2.0)

    def change(n):
        function.keywords["by"] = turn(n, 2.0, 3.0)

    return World(function, lambda n: given(vector(n), offset=turn(n, 1.0, 0.5)), change)


@case_of_state()
def closure_cell_changes():
    factor = 1.0

    def function(x):
        return x * factor

    def change(n):
        nonlocal factor
        factor = turn(n, 1.0, 2, 3.5)

    return World(function, lambda n: (vector(n),), change)


@case_of_state(stays_on_numpy="changes")
def closure_counts():
    count = 0

    def function(x):
        nonlocal count
        count += 1
        return x * count

    return World(function, lambda n: (vector(n),), seen=lambda: count)


@case_of_state()
def closure_function_replaced():
    def helper(x):
        return x * 2

    def function(x):
        return helper(x) + 1

    def change(n):
        nonlocal helper
        helper = turn(n, lambda x: x * 2, lambda x: x - 5, np.abs)

    return World(function, lambda n: (vector(n),), change)


@case_of_state(stays_on_numpy="changes")
def appends_to_a_list_of_arrays():
    history = []

    def function(x):
        y = x * 2
        history.append(y.sum())
        return y

    return World(function, lambda n: (vector(n),), seen=lambda: list(history))
