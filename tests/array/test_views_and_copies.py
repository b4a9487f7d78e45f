"""What recorded functions return shares memory, and lies in memory, as what NumPy returns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import anygpu as ag
from anygpu.array.core.array import as_array
from anygpu.array.core.numpy_results import RETURNS, returns_of
from anygpu.array.core.overrides import FUNCTIONS, UFUNCS, load_functions
from anygpu.array.trace.traced import NotTraceable, Traced
from anygpu.array.trace.tracing import trace
from anygpu.engines.numpy import lowering
from tests.support.memory_layouts import CALLS, LAYOUTS, NumpyCall, layout

pytestmark = pytest.mark.filterwarnings("ignore")


def function_of(*lines: str) -> Callable[[Any], Any]:
    """A function of `x` with these lines."""
    names: dict[str, Any] = {"np": np}
    exec("def function(x):\n" + "".join(f"    {line}\n" for line in lines), names)
    made: Callable[[Any], Any] = names["function"]
    return made


def recorded(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function's program gives for the arguments, on a device whose results are in C order."""
    traced = trace(function, arguments, {})
    if isinstance(traced, NotTraceable):
        return traced
    given = traced.inputs(function, arguments, {})
    assert given is not None
    return traced.rebuild([np.array(each, order="C") for each in lowering.run(traced.program, given)], given)


def leaves(returned: Any) -> list[Any]:
    if isinstance(returned, tuple | list):
        return [leaf for each in returned for leaf in leaves(each)]
    return [returned]


def facts(leaf: Any, x: Any) -> Any:
    """What can be seen of the memory of an array; the type of a number."""
    if type(leaf) is not np.ndarray:
        return type(leaf).__name__
    flags = leaf.flags
    return (
        "itself" if leaf is x else "a view" if np.shares_memory(leaf, x) else "new",
        leaf.shape,
        leaf.dtype.str,
        (flags.c_contiguous, flags.f_contiguous, flags.writeable),
    )


def sharing(returned: list[Any]) -> list[list[bool]]:
    return [[bool(np.shares_memory(one, other)) for other in returned] for one in returned]


def compared(function: Callable[[Any], Any], name: str, dtype: str, *, is_exact: bool = False) -> str | None:
    """How a recorded call differs from NumPy's, or why it is not recorded; `None` if it is the same.

    With `is_exact` the elements of the first result are compared too.
    """
    x, again = layout(name, dtype), layout(name, dtype)
    expected, got = leaves(function(x)), recorded(function, again)
    if isinstance(got, NotTraceable):
        return f"refused: {got.reason}"
    found = leaves(got)
    if len(expected) != len(found):
        return f"{len(found)} results, and NumPy has {len(expected)}"
    for one, other in zip(expected, found, strict=True):
        if facts(one, x) != facts(other, again):
            return f"{facts(other, again)}, and NumPy has {facts(one, x)}"
    if is_exact and not np.array_equal(expected[0], found[0], equal_nan=True):
        return f"{found[0]}, and NumPy has {expected[0]}"
    return None if sharing(expected) == sharing(found) else "other results share memory than with NumPy"


def of_layout(
    name: str, lines: Callable[[NumpyCall], list[str]], *, is_exact: bool = False
) -> tuple[int, list[str], list[str]]:
    """Calls that NumPy takes with one layout: how many, what differs, and what is refused."""
    count = 0
    differing: list[str] = []
    refused: list[str] = []
    for call in CALLS:
        function = function_of(*lines(call))
        try:
            with np.errstate(all="ignore"):
                function(layout(name, call.dtype))
        except Exception:  # noqa: BLE001 - NumPy does not take it
            continue
        count += 1
        with np.errstate(all="ignore"):
            found = compared(function, name, call.dtype, is_exact=is_exact)
        if found is not None:
            (refused if found.startswith("refused") else differing).append(f"{call.text}: {found}")
    return count, differing, refused


def of(text: str, name: str) -> str:
    """The call with another array in the place of `x`."""
    return re.sub(r"\bx\b", name, text)


def as_it_is(call: NumpyCall) -> list[str]:
    return [f"return {call.text}, x + 1"]


def written_to(call: NumpyCall) -> list[str]:
    """What the call returns is written to, and its argument returned: a copy of `x` in its order."""
    return ["y = x * 1", f"part = {of(call.text, 'y')}", "part += 7", "return y, x + 1"]


def test_the_table_has_every_function_that_is_recorded() -> None:
    load_functions.call(None)
    assert len({call.function for call in CALLS}) >= 300
    assert len(LAYOUTS) >= 20
    missing = {each.__name__ for each in (*FUNCTIONS, *UFUNCS) if returns_of(each) is None}
    assert missing <= _NOT_IN_THE_TABLE


#: They make arrays, need values, write into an array, or return none.
_NOT_IN_THE_TABLE = {
    *("arange", "empty", "eye", "from_dlpack", "fromfunction", "full", "identity", "indices", "ones", "tri", "zeros"),
    *("argwhere", "eig", "eigvals", "extract", "flatnonzero", "histogram_bin_edges", "intersect1d"),
    *("nonzero", "setdiff1d", "setxor1d", "trim_zeros", "union1d", "unique", "unique_all", "unique_counts"),
    *("unique_inverse", "unique_values", "copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"),
    *("array_equal", "array_equiv", "broadcast_shapes", "can_cast", "common_type", "iscomplexobj", "isdtype"),
    *("isrealobj", "min_scalar_type", "ndim", "result_type", "shape", "size", "diag_indices_from"),
    *("tril_indices_from", "triu_indices_from"),
}


def test_the_table_says_what_views_and_copies_are() -> None:
    assert RETURNS["np.transpose"].memory == "view"
    assert RETURNS["np.ravel"].memory == "view or new"
    assert RETURNS["ndarray.conjugate"].memory == "itself"
    assert RETURNS["np.sin"] == ("new", "operands", "number")
    assert RETURNS["np.zeros_like"].without_axes == "array"
    assert RETURNS["ndarray.copy"].without_axes == "as operand"


@pytest.mark.sampled(gate=6, full=1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_calls_return_what_numpy_returns(name: str) -> None:
    count, differing, _ = of_layout(name, as_it_is)
    assert count > 100
    assert not differing


@pytest.mark.sampled(gate=6, full=1)
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_into_a_result_is_seen_where_numpy_shows_it(name: str) -> None:
    _, differing, _ = of_layout(name, written_to, is_exact=True)
    assert not differing


@pytest.mark.full
def test_few_calls_are_refused() -> None:
    total = refusals = 0
    for name in LAYOUTS:
        count, differing, refused = of_layout(name, as_it_is)
        assert not differing
        total, refusals = total + count, refusals + len(refused)
    assert total > 300 * 20
    assert refusals <= 0.15 * total


#: Functions whose results are not unspecified for equal elements, or for memory that was never written.
_CHAINED = [
    call.text
    for call in CALLS
    if call.dtype == "float32" and not re.search("empty|argsort|argpartition|partition|lexsort", call.text)
]


@given(
    chain=st.lists(st.sampled_from(_CHAINED), min_size=2, max_size=3),
    name=st.sampled_from(list(LAYOUTS)),
    written=st.none() | st.integers(1, 3),
)
def test_calls_of_what_calls_return(chain: list[str], name: str, written: int | None) -> None:
    lines = [f"a{step + 1} = {of(text, f'a{step}')}" for step, text in enumerate(chain)]
    if written is not None and written <= len(chain):
        lines.append(f"a{written} += 3")
    returned = ", ".join(f"a{step + 1}" for step in range(len(chain)))
    function = function_of("a0 = x", *lines, f"return x + 1, {returned}")
    with np.errstate(all="ignore"):
        try:
            function(layout(name))
        except Exception:  # noqa: BLE001 - NumPy raises it
            assume(False)
        found = compared(function, name, "float32")
    assert found is None or found.startswith("refused")


# -- the arguments' layout


def traced_with(function: Callable[[Any], Any], x: Any) -> Traced:
    traced = trace(function, (x,), {})
    assert isinstance(traced, Traced), traced.reason
    return traced


def test_a_program_holds_for_the_strides_that_a_view_depends_on() -> None:
    def flat(x: Any) -> Any:
        return x.ravel(), x + 1

    x = np.arange(24.0).reshape(4, 6)
    traced = traced_with(flat, x)
    assert traced.inputs(flat, (x.copy(),), {}) is not None
    for other in (x[::-1], np.arange(48.0).reshape(4, 12)[:, ::2], np.asfortranarray(x)):
        assert traced.inputs(flat, (other,), {}) is None


def test_a_program_without_views_holds_for_every_layout_in_c_order() -> None:
    def plain(x: Any) -> Any:
        return np.sin(x) + 1

    traced = traced_with(plain, np.arange(24.0).reshape(4, 6))
    for other in (np.arange(24.0).reshape(4, 6)[::-1], np.arange(48.0).reshape(4, 12)[:, ::2]):
        assert traced.inputs(plain, (other,), {}) is not None
    assert traced.inputs(plain, (np.zeros((6, 4)).T,), {}) is None


def test_a_function_is_called_with_one_layout_after_another() -> None:
    @ag.offload(on="torch")
    def flat(x: Any) -> Any:
        return x.ravel(), x + 1

    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for layout_of_x in (x, x[::-1], x.T, x[:, ::2], x[1:3], x):
        got, _ = flat(layout_of_x)
        expected = layout_of_x.ravel()
        assert np.array_equal(got, expected)
        assert np.shares_memory(got, x) == np.shares_memory(expected, x)


@pytest.mark.parametrize(
    "made",
    [
        lambda x: (x * 2)[1:],
        lambda x: (x * 2).reshape(2, 3).T,
        lambda x: np.sort(x)[::-1],
        lambda x: np.stack([x, x])[0],
        lambda x: x[1:],
        lambda x: np.broadcast_to(x * 2, (2, 6)),
    ],
)
def test_an_array_that_is_returned_twice_is_one_array(made: Callable[[Any], Any]) -> None:
    def function(x: Any) -> Any:
        array, kept = made(x), np.zeros(2)
        return array, (array, x + 1), made(x), kept, kept

    x = np.arange(6.0)
    one, (same, _), other, kept, again = ag.offload(on="cpu", fallback="raise")(function)(x)
    assert one is same
    assert one is not other
    assert kept is again


# -- lazy arrays


def test_a_flattened_part_of_a_lazy_array_is_a_copy() -> None:
    ours, theirs = as_array(np.arange(6.0)), np.arange(6.0)
    for x in (ours, theirs):
        part = x[::2].ravel()
        part += 5
    assert np.array_equal(np.asarray(ours), theirs)


def test_the_conjugate_of_real_numbers_is_the_array_itself() -> None:
    x = as_array(np.arange(3.0))
    assert x.conj() is x
    assert x.conjugate() is x


@pytest.mark.parametrize("x", [np.ones((3, 4)), np.ones((3, 4)).T, np.ones((3, 4))[:, ::2], np.ones((2, 3, 4)).T])
def test_the_imaginary_part_of_real_numbers_lies_as_numpys(x: Any) -> None:
    functions: tuple[Callable[[Any], Any], ...] = (
        lambda x: np.imag(x) + 1,
        lambda x: np.divmod(x.imag, 3)[0],
        lambda x: np.imag(x[:, ::-1]) * 2,
    )
    for function in functions:
        assert facts(recorded(function, x), x) == facts(function(x), x)


@pytest.mark.parametrize(
    "x", [np.ones((3, 4))[::-1], np.ones((3, 4))[:, ::-1], np.ones((3, 4))[:, ::2], np.ones((3, 4))]
)
def test_gaps_and_axes_that_run_backwards_decide_the_order_of_a_result(x: Any) -> None:
    functions: tuple[Callable[[Any], Any], ...] = (
        lambda x: np.round(x.T, 2),
        lambda x: x.T.round(2),
        lambda x: np.imag(x.T) + 1,
    )
    for function in functions:
        assert facts(recorded(function, x), x) == facts(function(x), x)


@pytest.mark.parametrize(
    "text",
    [
        "np.rot90(a)",
        "a.T",
        "a[::-1]",
        "(a, a[0])",
        "(a, a)",
        "np.broadcast_to(a[0], (2, 3))",
        "a.reshape(3, 2)",
        "a[:, 1:]",
    ],
)
def test_constants_lie_as_numpys_or_the_call_stays_there(text: str) -> None:
    function = function_of("a = np.array([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])", f"return x + 1, {text}")
    x = np.ones(3)
    made = recorded(function, x)
    if isinstance(made, NotTraceable):
        assert "a view of a constant" in made.reason
        return
    expected = function(x)
    assert [facts(each, x) for each in leaves(made)] == [facts(each, x) for each in leaves(expected)]
    assert (leaves(made)[1] is leaves(made)[-1]) == (leaves(expected)[1] is leaves(expected)[-1])
