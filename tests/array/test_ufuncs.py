"""Every ufunc of NumPy on arrays gives what it gives on NumPy's own: values, types and shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.core.array import as_array
from anygpu.array.core.device import device_for
from anygpu.array.core.overrides import UFUNCS, load_functions
from anygpu.array.functions.ufunc_methods import MAX_STEPS
from anygpu.array.functions.ufuncs import REFUSED
from tests.array.against_numpy import DTYPES, check, compare, np, quiet, values

load_functions.call(None)

ALL = sorted(
    {value for value in vars(np).values() if isinstance(value, np.ufunc)}, key=lambda ufunc: str(ufunc.__name__)
)
ELEMENTWISE = [ufunc for ufunc in ALL if ufunc.signature is None and ufunc not in REFUSED]
ONE = [ufunc for ufunc in ELEMENTWISE if ufunc.nin == 1]
TWO = [ufunc for ufunc in ELEMENTWISE if ufunc.nin == 2]
#: NumPy's own `reduce` of these is wrong where it has vector instructions for them (2.4: `np.arctan2.reduce(x)` is not
#: `np.arctan2.accumulate(x)[-1]`), and that of `ldexp` returns the first element.
WRONG_IN_NUMPY = (np.arctan2, np.power, np.ldexp)
FOLDING = [ufunc for ufunc in TWO if ufunc.nout == 1 and ufunc not in WRONG_IN_NUMPY]

#: Composed of functions that NumPy rounds on their own, or in another order: so many units in the last place.
#: Which zero fmax and fmin give is not the same on all of NumPy's own ways either.
ULPS: dict[numpy.ufunc, int] = {
    **{np.logaddexp: 4, np.logaddexp2: 4, np.hypot: 4, np.float_power: 2},
    **{np.fmax: 1, np.fmin: 1},
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with quiet():
        yield


def test_nearly_every_ufunc_is_native() -> None:
    assert set(ALL) - set(UFUNCS) == set(REFUSED)
    assert len(UFUNCS) >= 0.95 * len(ALL)
    assert all(callable(function) for function in UFUNCS.values())


@pytest.mark.parametrize("ufunc", ONE, ids=lambda ufunc: ufunc.__name__)
def test_of_one(ufunc: numpy.ufunc) -> None:
    for dtype in DTYPES:
        compare(ufunc, values(dtype))
        compare(ufunc, values(dtype, size=6).reshape(2, 3))
        compare(ufunc, values(dtype)[:0])
        compare(ufunc, np.array(values(dtype)[3]))


@pytest.mark.parametrize("ufunc", TWO, ids=lambda ufunc: ufunc.__name__)
def test_of_two_in_every_pair_of_types(ufunc: numpy.ufunc) -> None:
    for one in DTYPES:
        for other in DTYPES:
            compare(ufunc, values(one), _second(ufunc, values(other, seed=1)), ulps=ULPS.get(ufunc, 0))


def _second(ufunc: numpy.ufunc, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Negative exponents of integers are an error, which would hide all else."""
    return np.abs(x) % 7 if ufunc is np.power and x.dtype.kind in "iu" else x


@pytest.mark.parametrize("ufunc", TWO, ids=lambda ufunc: ufunc.__name__)
@pytest.mark.parametrize("scalar", [True, 2, 2.5, 1 + 2j, np.float32(2), np.int8(3), np.uint64(5)], ids=repr)
def test_of_two_with_a_scalar(ufunc: numpy.ufunc, scalar: Any) -> None:
    for dtype in DTYPES:
        compare(ufunc, values(dtype), scalar, ulps=ULPS.get(ufunc, 0))
        compare(ufunc, scalar, _second(ufunc, values(dtype)), ulps=ULPS.get(ufunc, 0))


@pytest.mark.parametrize("ufunc", [np.less, np.equal, np.not_equal, np.greater_equal, np.add, np.maximum])
@pytest.mark.parametrize("scalar", [300, -300, 2**40, -(2**70)])
def test_integers_that_the_type_cannot_hold(ufunc: numpy.ufunc, scalar: int) -> None:
    for dtype in ("int8", "uint8", "int64", "uint64"):
        compare(ufunc, values(dtype), scalar)
        compare(ufunc, scalar, values(dtype))


@pytest.mark.parametrize("ufunc", [np.add, np.arctan2, np.logical_and, np.less, np.divmod, np.ldexp, np.fmax])
def test_broadcasting(ufunc: numpy.ufunc) -> None:
    x = values("int32", size=6).reshape(3, 1, 2)
    for shape in ((), (1,), (2,), (4, 1), (0, 1), (3, 4, 2)):
        compare(ufunc, x, np.full(shape, 3, "int32"))
    compare(ufunc, x, np.ones((5, 7), "int32"))


@pytest.mark.parametrize("ufunc", [each for each in UFUNCS if each.signature], ids=lambda ufunc: ufunc.__name__)
def test_products_of_matrices(ufunc: Any) -> None:
    a = np.arange(18, dtype="int8").reshape(2, 3, 3)
    one, other = {"matvec": (a, a[0, 1]), "vecmat": (a[0, 1], a)}.get(ufunc.__name__, (a, a))
    for dtype in ("int8", "float32", "complex128"):
        compare(ufunc, one.astype(dtype), other)
    x, y, theirs = as_array(one), as_array(other), ufunc(one, other)
    out = as_array(np.zeros(theirs.shape, "float32"))
    assert ufunc(x, y, out=out) is out
    check(out, theirs.astype("float32"), "out")
    check(ufunc(x, y, dtype="float64"), ufunc(one, other, dtype="float64"), "dtype")
    with pytest.raises(RuntimeError, match="signature"):
        ufunc.reduce(x)
    with pytest.raises(TypeError, match="moveaxis"):
        ufunc(x, y, axes=[(0, 1), (0, 1), (0, 1)])


def test_mixed_with_numpy_arrays_and_lists() -> None:
    x = np.arange(3.0)
    check(np.add(x, as_array(x)), x + x, "add")
    check(x + as_array(x), x + x, "operator")
    check(np.add([1, 2, 3], as_array(x)), x + x + 1, "list")
    check(np.float32(2) * as_array(x), x * 2, "scalar first")


def test_nothing_is_computed() -> None:
    x = as_array(np.ones(3))
    result = np.add.reduce(np.exp(x) + np.hypot(x, 2))
    assert not result._value.computed


def test_a_copy_is_not_the_array_itself() -> None:
    x = as_array(np.arange(3))
    for copy in (np.positive(x), np.floor(x), np.conjugate(x), np.add.reduce(x, axis=())):
        copy += 1
    np.testing.assert_array_equal(x, [0, 1, 2])


def test_results_stay_on_the_place_of_their_operands() -> None:
    x = as_array(np.arange(3))
    for result in (np.isnan(x), np.isfinite(x), np.add.reduce(x[:0]), np.spacing(x), np.heaviside(x, 1)):
        assert result._value.device is device_for(None)


class TestOptions:
    def test_out(self) -> None:
        x, out = as_array(np.arange(3.0)), as_array(np.zeros(3, "float32"))
        view = out[1:]
        assert np.add(x, 1, out=out) is out
        check(out, np.arange(1, 4, dtype="float32"), "out")
        check(view, np.array([2, 3], "float32"), "view")
        assert np.multiply(x, 2, out) is out
        check(out, np.array([0, 2, 4], "float32"), "by position")

    def test_out_that_is_an_operand_or_a_view_of_one(self) -> None:
        a = np.arange(4.0)
        x = as_array(a)
        np.add(x[:-1], x[1:], out=x[1:])
        np.add(a[:-1], a[1:].copy(), out=a[1:])
        check(x, a, "overlap")
        y = as_array(a)
        np.positive(x, out=y)
        x[0] = 100
        check(y, a, "not shared")

    def test_out_of_another_shape(self) -> None:
        x = as_array(np.arange(3.0))
        out = as_array(np.zeros((2, 3)))
        check(np.add(x, 1, out=out), np.add(np.arange(3.0), 1, out=np.zeros((2, 3))), "larger")
        with pytest.raises(ValueError, match="does not fit"):
            np.add(out, 1, out=x)

    def test_out_from_numpy_operands(self) -> None:
        out = as_array(np.zeros(3))
        np.add(np.arange(3), [1, 1, 1], out=out)
        check(out, np.arange(1.0, 4.0), "out")

    def test_two_outs(self) -> None:
        a = np.arange(5.0)
        x, whole, rest = as_array(a), as_array(np.zeros(5)), as_array(np.zeros(5))
        results = np.divmod(x, 2, out=(whole, rest))
        assert results[0] is whole
        assert results[1] is rest
        check((whole, rest), np.divmod(a, 2), "divmod")
        only = np.divmod(x, 3, out=(None, rest))
        check(only, np.divmod(a, 3), "one of two")

    def test_out_that_cannot_hold_the_result(self) -> None:
        x, out = as_array(np.ones(3)), as_array(np.zeros(3, "int64"))
        with pytest.raises(TypeError, match="Cannot cast"):
            np.add(x, 1, out=out)
        np.add(x, 1.9, out=out, casting="unsafe")
        check(out, np.array([2, 2, 2]), "unsafe")

    def test_a_numpy_array_is_not_written_to(self) -> None:
        a, x = np.zeros(3), as_array(np.ones(3))
        with pytest.raises(TypeError, match=r"np\.asarray"):
            np.add(x, 1, out=a)
        with pytest.raises(TypeError, match=r"np\.asarray"):
            a += x
        with pytest.raises(TypeError, match=r"np\.asarray"):
            np.add.reduce(x, out=np.zeros(()))

    def test_where(self) -> None:
        a, mask = np.arange(4.0), np.array([True, False, True, False])
        for given_mask in (mask, as_array(mask), mask.tolist()):
            out = as_array(np.full(4, -1.0))
            check(
                np.sqrt(as_array(a), out=out, where=given_mask), np.sqrt(a, out=np.full(4, -1.0), where=mask), "where"
            )
        with pytest.raises(TypeError, match="Give out="):
            np.sqrt(as_array(a), where=as_array(mask))
        with pytest.raises(TypeError, match="truth values"):
            np.sqrt(as_array(a), out=as_array(a), where=as_array(a))

    def test_dtype_and_casting(self) -> None:
        for dtype in ("float32", "float64", "complex64", "int8"):
            compare(lambda x, wanted=dtype: np.add(x, 1, dtype=wanted), values("int32"))
            compare(lambda x, wanted=dtype: np.sqrt(x, dtype=wanted), values("float32"))
            compare(lambda x, wanted=dtype: np.less(x, 1, dtype=wanted), values("float32"))
            compare(lambda x, wanted=dtype: np.multiply(x, x, dtype=wanted, casting="safe"), values("int32"))
        compare(lambda x: np.divmod(x, 3, dtype="float64"), values("int32"))
        compare(lambda x: np.add(x, 1, signature="ff->f", casting="unsafe"), values("int32"))
        compare(lambda x: np.add(x, 1, signature=("float32", None, None)), values("int16"))
        compare(lambda x: np.add(x, 1, order="F", subok=False), values("int32"))

    def test_what_is_not_an_option(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword"):
            np.add(as_array(np.ones(3)), 1, axis=0)


class TestRefusals:
    def test_a_ufunc_that_is_not_known(self) -> None:
        mine = np.frompyfunc(lambda x: x, 1, 1)
        with pytest.raises(TypeError, match=r"np\.asarray\(x\)"):
            mine(as_array(np.ones(3)))

    def test_dates(self) -> None:
        with pytest.raises(TypeError, match="dates"):
            np.isnat(as_array(np.ones(3)))

    def test_masked_arrays(self) -> None:
        with pytest.raises(TypeError, match="masked"):
            np.add(as_array(np.ones(3)), np.ma.array([1, 2, 3], mask=[0, 1, 0]))

    def test_strings(self) -> None:
        with pytest.raises(TypeError, match="no arrays of"):
            np.add(as_array(np.ones(3)), "abc")

    def test_arrays_of_other_libraries_are_asked(self) -> None:
        class Theirs:
            def __array_ufunc__(self, *arguments: Any, **options: Any) -> str:
                return "theirs"

        assert np.add(as_array(np.ones(3)), Theirs()) == "theirs"


def _reduce_ulps(ufunc: numpy.ufunc) -> int:
    """Functions that can be grouped at will round in another order than NumPy does."""
    return 16 if ufunc in (np.hypot, np.logaddexp, np.logaddexp2, np.float_power) else 0


def _reduceat_ulps(ufunc: numpy.ufunc) -> int:
    return 4 if ufunc in (np.add, np.multiply) else _reduce_ulps(ufunc)


@pytest.mark.parametrize("ufunc", [np.arctan2, np.power, np.float_power], ids=lambda ufunc: ufunc.__name__)
def test_reduce_goes_from_left_to_right(ufunc: numpy.ufunc) -> None:
    for dtype in ("int32", "float32", "float64"):
        line = np.array([3, 2, 1, 2, 1], dtype)
        inner = ufunc(line, line).dtype
        states = list(itertools.accumulate(line.astype(inner), ufunc))
        check(ufunc.reduce(as_array(line)), np.asarray(states[-1]), dtype, ulps=4)
        check(ufunc.accumulate(as_array(line)), np.array(states), dtype, ulps=4)
        check(ufunc.reduceat(as_array(line), [3, 0]), np.array([line[3], states[-1]], inner), dtype, ulps=4)


def test_functions_that_cannot_go_on_with_their_result() -> None:
    for run in (np.ldexp.reduce, np.less.accumulate):
        with pytest.raises(TypeError, match=r"cannot (go on|reduce)"):
            run(as_array(np.array([1, 2], "int8")))


@pytest.mark.parametrize("ufunc", FOLDING, ids=lambda ufunc: ufunc.__name__)
def test_reduce(ufunc: numpy.ufunc) -> None:
    for dtype in DTYPES:
        line = _second(ufunc, values(dtype))
        compare(ufunc.reduce, line, ulps=_reduce_ulps(ufunc))
        compare(ufunc.reduce, line[:1])
        compare(ufunc.reduce, line[:0])
        compare(ufunc.reduce, np.array(line[0]))
        box = _second(ufunc, values(dtype, size=12)).reshape(2, 3, 2)
        for axis in (0, 1, -1, None, (0, 2), ()):
            compare(lambda x, along=axis: ufunc.reduce(x, axis=along), box, ulps=_reduce_ulps(ufunc))
        compare(lambda x: ufunc.reduce(x, axis=1, keepdims=True, initial=1), box, ulps=_reduce_ulps(ufunc))


@pytest.mark.parametrize("ufunc", FOLDING, ids=lambda ufunc: ufunc.__name__)
def test_accumulate(ufunc: numpy.ufunc) -> None:
    for dtype in DTYPES:
        line = _second(ufunc, values(dtype))
        compare(ufunc.accumulate, line, ulps=_reduce_ulps(ufunc))
        compare(ufunc.accumulate, line[:1])
        compare(ufunc.accumulate, line[:0])
        box = _second(ufunc, values(dtype, size=12)).reshape(2, 3, 2)
        for axis in (0, 1, -1):
            compare(lambda x, along=axis: ufunc.accumulate(x, axis=along), box, ulps=_reduce_ulps(ufunc))


@pytest.mark.parametrize("ufunc", FOLDING, ids=lambda ufunc: ufunc.__name__)
def test_reduceat(ufunc: numpy.ufunc) -> None:
    for dtype in ("bool", "int8", "uint32", "float32", "complex64"):
        line = np.nan_to_num(values(dtype), posinf=2, neginf=-2)
        compare(lambda x: ufunc.reduceat(x, [0, 4, 1, 5, 5, 16]), line, ulps=_reduceat_ulps(ufunc))
        box = line[:12].reshape(3, 4)
        compare(lambda x: ufunc.reduceat(x, np.array([0, 2]), axis=1), box, ulps=_reduceat_ulps(ufunc))


@pytest.mark.parametrize("ufunc", TWO, ids=lambda ufunc: ufunc.__name__)
def test_outer(ufunc: numpy.ufunc) -> None:
    for dtype in ("bool", "int16", "float32", "complex128"):
        x = _second(ufunc, values(dtype, size=6)).reshape(2, 3)
        compare(ufunc.outer, x, x, ulps=ULPS.get(ufunc, 0))
        compare(lambda x: ufunc.outer(x, 2.0), x, ulps=ULPS.get(ufunc, 0))
        compare(lambda x: ufunc.outer(3, x), x, ulps=ULPS.get(ufunc, 0))


class TestReduceOptions:
    def test_dtype(self) -> None:
        for dtype in ("bool", "int8", "float32", "complex128"):
            for ufunc in (np.add, np.multiply, np.maximum, np.bitwise_or, np.logical_and):
                compare(lambda x, f=ufunc, d=dtype: f.reduce(x, dtype=d), np.array([1, 2, 0, 3], "int16"))
                compare(lambda x, f=ufunc, d=dtype: f.accumulate(x, dtype=d), np.array([1, 2, 0, 3], "int16"))

    def test_out(self) -> None:
        for dtype in ("int8", "int64", "float32"):
            a = np.arange(6, dtype="int8").reshape(2, 3)
            out = as_array(np.zeros(3, dtype))
            assert np.add.reduce(as_array(a), out=out) is out
            check(out, np.add.reduce(a, out=np.zeros(3, dtype)), dtype)
        with pytest.raises(ValueError, match="does not fit"):
            np.add.reduce(as_array(a), out=as_array(np.zeros((1, 3))))
        total = as_array(np.zeros((2, 3)))
        np.add.accumulate(as_array(a), out=total)
        check(total, np.add.accumulate(a, dtype="float64"), "accumulate")

    def test_initial(self) -> None:
        a = np.arange(6).reshape(2, 3)
        for ufunc in (np.add, np.multiply, np.maximum, np.minimum, np.bitwise_xor, np.subtract, np.gcd):
            for initial in (3, -2, 2.7, None, np.int8(4), True):
                compare(lambda x, f=ufunc, i=initial: f.reduce(x, initial=i), a)
                compare(lambda x, f=ufunc, i=initial: f.reduce(x, initial=i), a[:0])
        compare(lambda x: np.maximum.reduce(x, axis=None, initial=x[0, 0]), a)

    def test_where(self) -> None:
        a = np.arange(1, 7).reshape(2, 3)
        for mask in (a > 2, np.array([True, False, True]), np.array(False)):
            for ufunc in (np.add, np.multiply, np.maximum, np.fmin, np.bitwise_and, np.subtract, np.lcm, np.logical_or):
                compare(lambda x, m=mask, f=ufunc: f.reduce(x, axis=1, where=m), a)
                compare(lambda x, m=mask, f=ufunc: f.reduce(x, axis=1, where=m, initial=2), a)

    def test_mistakes(self) -> None:
        x = as_array(np.ones((2, 2)))
        mistakes: list[tuple[Any, dict[str, Any]]] = [
            (np.sin.reduce, {}),
            (np.divmod.reduce, {"axis": 0}),
            (np.subtract.reduce, {"axis": None}),
            (np.add.accumulate, {"axis": None}),
            (np.sin.outer, {}),
            (np.add.reduce, {"initial": [1, 2]}),
            (np.add.reduce, {"axis": (0, 0)}),
        ]
        for method, options in mistakes:
            with pytest.raises(ValueError, match=r"\w"):
                method(x, **options)
        with pytest.raises(np.exceptions.AxisError):
            np.add.reduce(x, axis=2)
        with pytest.raises(TypeError, match="axis"):
            np.add.accumulate(as_array(1.0))
        with pytest.raises(IndexError, match="out of bounds"):
            np.add.reduceat(x, [0, 2])

    def test_long_lines(self) -> None:
        a = np.arange(1, MAX_STEPS + 2)
        compare(np.bitwise_xor.reduce, a)
        compare(np.gcd.accumulate, a)
        compare(np.subtract.reduce, a[1:])
        for run in (np.subtract.reduce, np.subtract.accumulate):
            with pytest.raises(TypeError, match="on the host"):
                run(as_array(a))

    @settings(max_examples=40, deadline=None)
    @given(
        shape=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
        axis=st.integers(-3, 2),
        ufunc=st.sampled_from([np.add, np.maximum, np.bitwise_or, np.fmin, np.subtract, np.logical_xor]),
        method=st.sampled_from(["reduce", "accumulate"]),
    )
    def test_any_shape(self, shape: tuple[int, ...], axis: int, ufunc: numpy.ufunc, method: str) -> None:
        a = np.arange(np.prod(shape), dtype="int32").reshape(shape)
        if -a.ndim <= axis < a.ndim:
            compare(lambda x: getattr(ufunc, method)(x, axis=axis), a)


class TestAt:
    @pytest.mark.parametrize("ufunc", [np.add, np.subtract, np.multiply, np.maximum, np.minimum])
    def test_positions_that_come_twice(self, ufunc: Any) -> None:
        for dtype in DTYPES:
            if dtype == "bool" and ufunc is np.subtract:
                continue
            a = values(dtype, size=12).reshape(4, 3)
            more = values(dtype, seed=5, size=5)
            keys: list[tuple[Any, Any]] = [
                (([0, 1, 1, 3, -1], [2, 0, 0, 1, 1]), more),
                ([1, 1, 2], more[:3]),
                (slice(1, 3), more[0]),
                ((..., 1), more[:4]),
                (a == a[0, 0], more[1]),
                ((2, 2), True),
            ]
            for key, operand in keys:
                theirs, ours = a.copy(), as_array(a)
                ufunc.at(theirs, key, operand)
                ufunc.at(ours, key, as_array(operand) if isinstance(operand, np.ndarray) else operand)
                check(ours, theirs, (dtype, key))

    def test_lazy_positions_and_views(self) -> None:
        a = np.zeros((3, 4))
        x = as_array(a)
        np.add.at(x[1], as_array(np.array([0, 3, 3])), 2)
        np.add.at(a[1], np.array([0, 3, 3]), 2)
        check(x, a, "view")

    def test_types(self) -> None:
        a = np.zeros(3, "float32")
        x = as_array(a)
        np.add.at(x, [0, 0], np.float64(1.5))
        np.add.at(a, [0, 0], np.float64(1.5))
        check(x, a, "narrower")
        with pytest.raises(TypeError, match="astype"):
            np.add.at(as_array(np.zeros(3, int)), [0], 1.5)
        with pytest.raises(TypeError, match="astype"):
            np.maximum.at(as_array(np.zeros(3, "int8")), [0], np.int64(300))

    def test_refusals(self) -> None:
        x = as_array(np.ones(3))
        with pytest.raises(TypeError, match=r"x\[i\] = np.negative\(x\[i\]\)"):
            np.negative.at(x, [0])
        with pytest.raises(TypeError, match=r"x\[i\] = np.divide\(x\[i\], y\)"):
            np.divide.at(x, [0], 2)
        with pytest.raises(TypeError, match=r"np\.asarray"):
            np.add.at(np.ones(3), [0], x)
        with pytest.raises(IndexError):
            np.add.at(x, [3], 1)
