"""Branches, loops, exceptions that are caught, and every other way in which Python goes on elsewhere."""

import contextlib

import numpy as np

from tests.semantics.cases import case, given, matrix, positive, turn, vector


@case(lambda n: (vector(n, turn(n, 3, 5)),))
def branch_on_length(x):
    if len(x) > 4:
        return x * 2
    return x * 3


@case(lambda n: (turn(n, vector(n), matrix(n)),))
def branch_on_dimensions(x):
    if x.ndim == 2:
        return x.sum(axis=1)
    elif x.ndim == 1:
        return x * 2
    raise ValueError("too many")


@case(lambda n: (vector(n, dtype=turn(n, np.float32, np.int32)),))
def branch_on_type(x):
    return x / 2 if x.dtype.kind == "f" else x // 2


@case(lambda n: (vector(n), turn(n, "double", "half", "none")))
def branch_on_a_string(x, mode):
    if mode == "double":
        return x * 2
    elif mode == "half":
        return x / 2
    return x + 0


@case(lambda n: (vector(n), turn(n, None, vector(n + 1))))
def branch_on_none(x, y):
    if y is None:
        y = x * 2
    return x + y


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def branch_on_a_value(x):
    if x.sum() > 0:
        return x * 2
    return x * 3


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def branch_on_any_and_all(x):
    if np.any(x > 3.8):
        return x * 2
    return x * 3 if (x > -4).all() else x * 4


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def ternary_on_a_value(x):
    return x * 2 if x[0] > 0 else -x


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def while_on_a_value(x):
    y = np.abs(x) + 1
    while y.max() > 1:
        y = y / 2
    return y


@case(lambda n: (vector(n), turn(n, 2, 3, 4)))
def while_with_a_counter(x, steps):
    count = 0
    while count < steps:
        x = x * 2 - 1
        count += 1
    return x, count


@case(lambda n: (vector(n), turn(n, 2, 5)))
def for_with_else(x, wanted):
    for number in range(4):
        if number == wanted:
            x = x * 2
            break
        x = x + 1
    else:
        x = -x
    return x


@case(lambda n: (vector(n), turn(n, 2, 5)))
def while_with_else(x, wanted):
    number = 0
    while number < 4:
        if number == wanted:
            break
        number += 1
    else:
        x = -x
    return x * number


@case(lambda n: (vector(n),))
def continue_in_a_loop(x):
    total = x * 0
    for number in range(6):
        if number % 2:
            continue
        total = total + x * number
    return total


@case(lambda n: (vector(n), turn(n, True, False)))
def early_return(x, stop):
    y = x * 2
    if stop:
        return y
    y = y + 1
    return y - x


@case(lambda n: (vector(n), turn(n, True, False)))
def return_nothing_sometimes(x, stop):
    if stop:
        return None
    return x * 2


@case(lambda n: (vector(n), turn(n, {"a": 2}, {"b": 3})))
def try_key_error(x, options):
    try:
        factor = options["a"]
    except KeyError:
        factor = 10
    else:
        factor += 1
    finally:
        x = x + 1
    return x * factor


@case(lambda n: (turn(n, vector(n, 4), vector(n, 6)), vector(n, 6)))
def try_shapes_that_do_not_match(x, y):
    try:
        return x + y
    except ValueError:
        return y * 2


@case(lambda n: (turn(n, vector(n, 4), vector(n, 6)),))
def try_an_index_out_of_bounds(x):
    try:
        return x[5] * 2 + x[0]
    except IndexError:
        return x[0] - 1


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def try_float_of_a_value(x):
    try:
        largest = float(x.max())
    except Exception:
        largest = 1.0
    return x * largest


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def try_float_with_type_error(x):
    try:
        largest = float(x.max())
    except (TypeError, ValueError):
        largest = 1.0
    return x * largest


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def try_bare_except(x):
    try:
        if x.max() > 2:
            return x / 2
    except:  # noqa: E722
        pass
    return x * 3


@case(lambda n: (vector(n),), either=True)
def try_truth_of_an_array(x):
    try:
        if x:
            return x * 2
    except ValueError as error:
        return x * 3, str(error)
    return x


@case(lambda n: (vector(n),))
def raise_inside_and_catch(x):
    try:
        raise RuntimeError("never mind")
    except RuntimeError as error:
        return x * len(error.args[0])


@case(lambda n: (vector(n),))
def nested_try(x):
    seen = []
    try:
        try:
            x = x * 2
            {}["missing"]
        except ValueError:
            seen.append("value")
        finally:
            seen.append("inner")
    except KeyError as error:
        seen.append(repr(error))
    return x, seen


@case(lambda n: (vector(n),))
def exception_group(x):
    try:
        raise ExceptionGroup("two", [ValueError(1), KeyError(2)])
    except* ValueError:
        x = x * 2
    except* KeyError:
        x = x + 1
    return x


@case(lambda n: (vector(n),))
def return_from_finally(x):
    try:
        return x * 2
    finally:
        x = x * 100


@case(lambda n: (vector(n, turn(n, 3, 12)),))
def walrus(x):
    if (size := x.size) > 5:
        return x * size
    return [y := x * 2, y + 1]


@case(lambda n: (vector(n), turn(n, ("scale", 2), ("shift", 1), ("both", 2, 3), None)))
def match_sequences(x, what):
    match what:
        case ("scale", factor):
            return x * factor
        case ("shift", by):
            return x + by
        case ("both", factor, by):
            return x * factor + by
        case _:
            return x * 0


@case(lambda n: (vector(n), turn(n, {"kind": "scale", "by": 2}, {"kind": "none"}, 5, 2.5, "text")))
def match_kinds(x, what):
    match what:
        case {"kind": "scale", "by": by}:
            return x * by
        case {"kind": kind, **rest}:
            return x * len(kind) + len(rest)
        case int(k) if k > 2:
            return x + k
        case float() | int():
            return x - what
        case str(text):
            return x * len(text)


@case(lambda n: (turn(n, vector(n, 3), matrix(n), vector(n, 2)),))
def match_a_shape(x):
    match x.shape:
        case (2,):
            return x * 2
        case (size,):
            return x * size
        case (rows, columns):
            return x * rows + columns


@case(lambda n: (turn(n, vector(n, 3), [1.0, 2.0], 7.0),), either=True)
def match_a_class(x):
    match x:
        case np.ndarray():
            return x * 2
        case [first, *_]:
            return first
        case _:
            return x


@contextlib.contextmanager
def _noted(log, name):
    log.append(f"enter {name}")
    try:
        yield 3
    finally:
        log.append(f"leave {name}")


@case(lambda n: (vector(n),))
def context_managers(x):
    log = []
    with _noted(log, "a") as factor, _noted(log, "b"):
        x = x * factor
    return x, log


@case(lambda n: (vector(n),))
def suppressed(x):
    with contextlib.suppress(KeyError):
        x = x * 2
        {}["missing"]
        x = x * 100
    return x


class _Managed:
    def __init__(self, factor):
        self.factor = factor
        self.left = None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.left = kind
        return kind is ZeroDivisionError


@case(lambda n: (vector(n),))
def a_context_that_swallows(x):
    with _Managed(3) as managed:
        x = x * managed.factor
        1 // 0
    return x, managed.left is ZeroDivisionError


@case(lambda n: (vector(n),))
def exit_stack(x):
    with contextlib.ExitStack() as stack:
        log = []
        stack.callback(log.append, "end")
        for name in "ab":
            stack.enter_context(_noted(log, name))
        x = x * len(log)
    return x, log


@case(lambda n: (vector(n),))
def assertions_that_hold(x):
    assert x.ndim == 1
    assert len(x) == 6, "six numbers"
    return x * 2


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def assertion_on_values(x):
    assert (np.abs(x) < 100).all()
    return x * 2


@case(lambda n: (matrix(n),))
def comprehensions(x):
    rows = [row * 2 for row in x]
    named = {number: row.sum() for number, row in enumerate(x)}
    pairs = [a * b for a in rows for b in rows if a is not b]
    return rows, named, len(pairs), pairs[0]


@case(lambda n: (matrix(n),))
def generator_expression(x):
    return sum(row * number for number, row in enumerate(x))


@case(lambda n: (vector(n), vector(n + 1)))
def conditional_expression_chain(x, y):
    size = x.size
    return x if size > 10 else y * 2 if size > 5 else None


@case(lambda n: (vector(n), turn(n, 0, 2), turn(n, "", "text", None)))
def and_and_or(x, k, text):
    return x * (k or 5), x + len(text or "default"), x * (k and 7)


@case(lambda n: (vector(n), turn(n, [], [1], [1, 2])))
def truth_of_a_list(x, options):
    if not options:
        return x * 2
    return x * len(options)


@case(lambda n: (vector(n),), stays_on_numpy="cannot be traced")
def chained_comparison_of_values(x):
    if -10 < x[0] < 10:
        return x * 2
    return x


@case(lambda n: given(positive(n), tolerance=turn(n, 0.5, 0.1)), stays_on_numpy="cannot be traced")
def newton_with_a_stop(x, tolerance):
    y = x
    for step in range(10):
        better = (y + x / y) / 2
        if np.abs(better - y).max() < tolerance:
            return better, step
        y = better
    return y, 10


@case(lambda n: (vector(n),))
def nested_loops(x):
    total = x * 0
    for i in range(3):
        for j in range(i, 3):
            total += x * (i + 1) * (j - 1)
    return total


@case(lambda n: (vector(n),))
def multiple_assignment(x):
    a = b = x * 2
    a, b = b + 1, a
    a += 1
    return a, b


@case(lambda n: (vector(n),))
def multiple_assignment_is_one_array(x):
    a = b = x * 2
    a += 1
    return b
