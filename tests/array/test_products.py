"""Products of arrays against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.core.array import Array, as_array
from anygpu.array.functions import products
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.base.typing import HostArray
from anygpu.program.primitives import Contract, Iota

reference: Any = np
KINDS = [
    "bool",
    "int8",
    "uint8",
    "int32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
TOLERANCE = {"float16": 1e-2, "float32": 1e-5, "complex64": 1e-5}


def make(shape: tuple[int, ...], dtype: str = "float64", seed: int = 0) -> HostArray:
    rng = np.random.default_rng(seed + sum(shape))
    values = rng.normal(size=shape) * 3
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.normal(size=shape)
    if dtype == "bool":
        return np.asarray(values > 1)
    return np.abs(values).astype(dtype) if np.dtype(dtype).kind == "u" else values.astype(dtype)


def same(ours: Array, theirs: Any) -> None:
    expected = np.asarray(theirs)
    assert isinstance(ours, Array)
    assert ours.shape == expected.shape
    assert ours.dtype == expected.dtype
    tolerance = TOLERANCE.get(expected.dtype.name, 1e-12)
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=tolerance, atol=tolerance * 10)


def contracts(array: Array) -> int:
    return sum(isinstance(node.op, Contract) for node in array.program.nodes)


MATMUL_SHAPES = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 5)),
    ((2, 3), (3, 5)),
    ((0, 3), (3, 5)),
    ((2, 0), (0, 5)),
    ((4, 2, 3), (3, 5)),
    ((2, 3), (4, 3, 5)),
    ((4, 2, 3), (4, 3, 5)),
    ((7, 1, 2, 3), (4, 3, 5)),
    ((1, 2, 3), (4, 3, 1)),
    ((1, 1, 2, 3), (1, 3, 5)),
    ((7, 1, 2, 3), (1, 4, 3, 5)),
    ((7, 4, 2, 3), (7, 1, 3, 5)),
    ((4, 2, 3), (3,)),
    ((3,), (4, 3, 5)),
    ((0, 2, 3), (1, 3, 5)),
]


@pytest.mark.parametrize(("left", "right"), MATMUL_SHAPES)
def test_matmul_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = make(left), make(right, seed=1)
    same(products.matmul(as_array(x), as_array(y)), x @ y)


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
def test_matmul_types(left: str, right: str) -> None:
    x, y = make((3, 4), left), make((4, 2), right)
    same(as_array(x) @ as_array(y), x @ y)


def test_matmul_takes_numpy_arrays_and_lists() -> None:
    x = make((2, 3))
    same(products.matmul(x, as_array(x.T)), x @ x.T)
    same(products.matmul([[1, 2]], [[3], [4]]), np.array([[11]]))


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (2, 3)), ((3,), (2,)), ((2, 2, 3), (3, 3, 4)), ((), (3,)), ((3,), ())]
)
def test_matmul_refuses_what_does_not_fit(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"fit|broadcast|axis"):
        products.matmul(as_array(make(left)), as_array(make(right)))


@pytest.mark.parametrize(("left", "right"), [((7, 1, 2, 3), (4, 3, 5)), ((4, 2, 3), (4, 3, 5)), ((9, 2, 3), (3, 5))])
def test_a_stack_is_one_contraction_without_broadcasting(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    result = as_array(make(left)) @ as_array(make(right))
    assert contracts(result) == 1
    assert not any(node.op.name == "broadcast" for node in result.program.nodes)


@pytest.mark.parametrize("dtype", KINDS)
def test_vecdot_types(dtype: str) -> None:
    x, y = make((4, 3), dtype), make((4, 3), dtype, seed=1)
    same(products.vecdot(as_array(x), as_array(y)), reference.vecdot(x, y))


@pytest.mark.parametrize(
    ("left", "right", "axis"),
    [((3,), (3,), -1), ((5, 1, 3), (4, 3), -1), ((3, 4), (3, 4), 0), ((3, 1, 2), (3, 4, 1), -3), ((2, 0), (2, 0), -1)],
)
def test_vecdot_axes(left: tuple[int, ...], right: tuple[int, ...], axis: int) -> None:
    x, y = make(left, "complex128"), make(right, "complex128", seed=1)
    same(products.vecdot(as_array(x), as_array(y), axis=axis), reference.vecdot(x, y, axis=axis))


def test_vecdot_does_not_broadcast_the_vectors() -> None:
    with pytest.raises(ValueError, match="lengths 3 and 1"):
        products.vecdot(as_array(make((3,))), as_array(make((1,))))


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (3,)), ((4, 2, 3), (3,)), ((2, 3), (5, 3)), ((4, 1, 2, 3), (5, 3))]
)
def test_matvec(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = make(left, "complex64"), make(right, "complex64")
    same(products.matvec(as_array(x), as_array(y)), np.matvec(x, y))


@pytest.mark.parametrize(
    ("left", "right"), [((2,), (2, 3)), ((5, 2), (2, 3)), ((2,), (4, 2, 3)), ((5, 2), (4, 1, 2, 3))]
)
def test_vecmat(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = make(left, "complex64"), make(right, "complex64")
    same(products.vecmat(as_array(x), as_array(y)), np.vecmat(x, y))


@pytest.mark.parametrize(
    ("left", "right", "axes"),
    [
        ((2, 3, 4), (3, 4, 5), 2),
        ((2, 3), (3, 5), 1),
        ((2, 3), (4, 5), 0),
        ((), (4, 5), 0),
        ((2, 3, 4), (4, 3, 2), ((0, 1, 2), (2, 1, 0))),
        ((2, 3, 4), (4, 3, 5), ((-1, 1), (0, 1))),
        ((2, 3, 4), (5, 3), (1, 1)),
        ((2, 3, 4), (5, 3), ([1], (-1,))),
        ((2, 0), (0, 3), 1),
        ((2, 3), (2, 3), ((), ())),
    ],
)
def test_tensordot(left: tuple[int, ...], right: tuple[int, ...], axes: Any) -> None:
    x, y = make(left), make(right, seed=1)
    same(products.tensordot(as_array(x), as_array(y), axes), np.tensordot(x, y, axes))


@pytest.mark.parametrize(
    ("left", "right", "axes"),
    [((2, 3), (2, 3), 1), ((2, 3), (3, 2), ((0, 1), (0,))), ((2, 2), (2, 2), ((0, 0), (0, 1))), ((2,), (2,), 2)],
)
def test_tensordot_refuses(left: tuple[int, ...], right: tuple[int, ...], axes: Any) -> None:
    with pytest.raises(ValueError, match=r"shape-mismatch|duplicate|out of range"):
        products.tensordot(as_array(make(left)), as_array(make(right)), axes)


PAIRS = [
    ((), ()),
    ((), (3,)),
    ((3,), ()),
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (6, 3, 4)),
]


@pytest.mark.parametrize(("left", "right"), PAIRS)
@pytest.mark.parametrize("dtype", ["bool", "int8", "float32", "complex128"])
def test_dot(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    x, y = make(left, dtype), make(right, dtype, seed=1)
    same(products.dot(as_array(x), as_array(y)), np.dot(x, y))


@pytest.mark.parametrize(
    ("left", "right"), [((), ()), ((), (3,)), ((3,), (3,)), ((2, 3), (3,)), ((2, 3), (4, 3)), ((5, 2, 3), (6, 3))]
)
def test_inner(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = make(left, "complex64"), make(right, "complex64", seed=1)
    same(products.inner(as_array(x), as_array(y)), np.inner(x, y))


def test_dot_and_inner_refuse_what_is_not_aligned() -> None:
    x = as_array(make((2, 3)))
    for function in (products.dot, products.inner):
        with pytest.raises(ValueError, match="not aligned"):
            function(x, as_array(make((2,))))


@pytest.mark.parametrize(("left", "right"), [((3,), (4,)), ((2, 3), (4,)), ((), (4,)), ((0,), (4,))])
@pytest.mark.parametrize("dtype", KINDS)
def test_outer(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    x, y = make(left, dtype), make(right, dtype, seed=1)
    same(products.outer(as_array(x), as_array(y)), np.outer(x, y))


@pytest.mark.parametrize(
    ("left", "right"), [((2, 3), (4, 5)), ((3,), (4, 5)), ((2, 3, 2), (4,)), ((), (3,)), ((), ()), ((0, 2), (3, 3))]
)
def test_kron(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = make(left, "int32"), make(right, "float32", seed=1)
    same(products.kron(as_array(x), as_array(y)), np.kron(x, y))


def test_python_numbers_are_not_weak_beside_functions_that_are_no_ufuncs() -> None:
    x = make((3,), "float32")
    for name in ("dot", "inner", "outer", "kron"):
        same(getattr(products, name)(as_array(x), 2.0), getattr(np, name)(x, 2.0))


@pytest.mark.parametrize(
    ("left", "right", "options"),
    [
        ((3,), (3,), {}),
        ((4, 3), (3,), {}),
        ((5, 1, 3), (4, 3), {}),
        ((3, 4), (3, 4), {"axis": 0}),
        ((3, 4), (4, 3), {"axisa": 0, "axisb": 1, "axisc": 0}),
        ((3, 4), (4, 3), {"axisa": 0}),
        ((0, 3), (0, 3), {}),
    ],
)
def test_cross(left: tuple[int, ...], right: tuple[int, ...], options: dict[str, int]) -> None:
    for dtype in ("int64", "float32", "complex128"):
        x, y = make(left, dtype), make(right, dtype, seed=1)
        same(products.cross(as_array(x), as_array(y), **options), np.cross(x, y, **options))


@pytest.mark.parametrize(("left", "right"), [((2,), (2,)), ((4, 2), (4, 3)), ((1, 3), (4, 2)), ((5, 1, 2), (4, 2))])
@pytest.mark.filterwarnings("ignore:Arrays of 2-dimensional vectors:DeprecationWarning")
def test_cross_in_the_plane(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    x, y = make(left), make(right, seed=1)
    try:
        expected = np.cross(x, y)
    except ValueError:  # since NumPy 2.5
        with pytest.raises(ValueError, match="3 components"):
            products.cross(as_array(x), as_array(y))
    else:
        same(products.cross(as_array(x), as_array(y)), expected)


def test_a_trace_ends_where_numpy_warns_of_vectors_in_the_plane() -> None:
    assert isinstance(trace(lambda x: np.cross(x, x), (make((4, 3)),), {}), Traced)
    assert not isinstance(trace(lambda x: np.cross(x, x), (make((4, 2)),), {}), Traced)


def test_cross_refuses() -> None:
    with pytest.raises(ValueError, match="2 or 3 components"):
        products.cross(as_array(make((4,))), as_array(make((3,))))
    with pytest.raises(ValueError, match="at least one axis"):
        products.cross(as_array(1.0), as_array(make((3,))))


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("offset", [-5, -1, 0, 2, 4, 9])
def test_trace(dtype: str, offset: int) -> None:
    x = make((4, 5, 3), dtype)
    same(products.trace(as_array(x), offset), np.trace(x, offset))
    same(products.trace(as_array(x), offset, axis1=-1, axis2=0), np.trace(x, offset, axis1=-1, axis2=0))


def test_trace_of_little() -> None:
    for shape in ((0, 0), (0, 3), (1, 1), (3, 0, 2)):
        x = make(shape)
        same(products.trace(as_array(x)), np.trace(x))
    same(
        products.trace(as_array(make((3, 3), "int8")), dtype="float32"), np.trace(make((3, 3), "int8"), dtype="float32")
    )
    with pytest.raises(ValueError, match="two axes"):
        products.trace(as_array(make((3,))))
    with pytest.raises(ValueError, match="same"):
        products.trace(as_array(make((3, 3))), axis1=0, axis2=-2)
    with pytest.raises(np.exceptions.AxisError):
        products.trace(as_array(make((3, 3))), axis1=2)


LENGTHS = {"i": 2, "j": 3, "k": 4, "l": 5, "I": 2, "z": 1}


def operands(spelling: str, dtype: str = "float64", dots: tuple[int, ...] = (3, 2)) -> list[HostArray]:
    terms = spelling.partition("->")[0].replace(" ", "").split(",")
    shapes = []
    for term in terms:
        before, has_dots, after = term.partition("...")
        lengths = [LENGTHS[c] for c in before], [LENGTHS[c] for c in after]
        shapes.append((*lengths[0], *(dots if has_dots else ()), *lengths[1]))
    return [make(shape, dtype, seed=number) for number, shape in enumerate(shapes)]


EINSUMS = [
    "i->i",
    "i->",
    "i",
    "ij->ji",
    "ji",
    "ij",
    "ii",
    "ii->i",
    "iij->ij",
    "iji->ji",
    "iijj->ij",
    "iijj->ji",
    "iijj",
    "iii->i",
    "ij->j",
    "i,i",
    "i,i->i",
    "i,j",
    "i,j->ji",
    "ij,jk",
    "ij,jk->ik",
    "ij,jk->ki",
    "ij,jk->",
    "ij,ij->ij",
    "ij,ij->",
    "ijk,ikl->ijl",
    "ijk,ikl->ilj",
    "ij,kl->",
    "ij,kl->jk",
    "ii,ij->j",
    "ii,jj->ij",
    "ij,jk,kl",
    "ij,jk,kl->li",
    "i,j,k->kji",
    "i,i,i->i",
    "ij,i,j->",
    "ij,jk,ik->",
    "ijk,il,jl,kl->l",
    "iI,I",
    " i j , j k -> k i",
    "...",
    "...i",
    "...i->i...",
    "...i->...",
    "i...->...",
    "...ij,...jk->...ik",
    "...ij,...jk",
    "i...j,j...k->...ki",
    "i...i",
    "i...i->...i",
    "...,...",
    "...,",
    "ij...,jk->ik...",
    ",",
    ",->",
    "",
    "->",
    "z,i->i",
    "z,i",
]


@pytest.mark.parametrize("spelling", EINSUMS)
@pytest.mark.parametrize("dtype", ["float64", "int32", "bool", "complex64"])
def test_einsum(spelling: str, dtype: str) -> None:
    values = operands(spelling, dtype)
    same(products.einsum(spelling, *map(as_array, values)), np.einsum(spelling, *values))


@pytest.mark.parametrize(
    ("spelling", "shapes"),
    [
        ("ij,ij->ij", [(1, 3), (2, 3)]),
        ("ij,jk", [(2, 1), (3, 4)]),
        ("ij,jk->ij", [(2, 3), (1, 4)]),
        ("i,i,i", [(1,), (3,), (1,)]),
        ("i,i,i", [(1,), (1,), (1,)]),
        ("i,i", [(0,), (1,)]),
        ("...i,...i->...", [(4, 1, 3), (2, 3)]),
        ("i...,i...->...", [(3, 2), (3, 4, 1)]),
        ("b...a,...", [(2, 3, 4), (5, 1)]),
        ("...i->i", [(3,)]),
        ("i->...", [(3,)]),
        ("ab,b->a", [(2, 0), (0,)]),
        ("ab->a", [(2, 0)]),
    ],
)
def test_einsum_broadcasts(spelling: str, shapes: list[tuple[int, ...]]) -> None:
    values = [make(shape, seed=number) for number, shape in enumerate(shapes)]
    same(products.einsum(spelling, *map(as_array, values)), np.einsum(spelling, *values))


def test_einsum_with_lists() -> None:
    x, y = make((2, 3)), make((3, 4))
    for labels in ([0, 1], [1, 2], [0, 2]), ([0, 1], [1, 2]), ([5, 1], [1, 2]), ([0, 1], [1, 2], [2, ..., 0]):
        call = [x, labels[0], y, labels[1], *labels[2:]]
        ours = [as_array(x), labels[0], as_array(y), labels[1], *labels[2:]]
        same(products.einsum(*ours), np.einsum(*call))
    same(products.einsum(as_array(x), [30, 2]), np.einsum(x, [30, 2]))
    same(products.einsum(as_array(x), [..., 1], [1, ...]), np.einsum(x, [..., 1], [1, ...]))


def test_einsum_types() -> None:
    x, y = make((3,), "float32"), make((3,), "int8")
    same(products.einsum("i,i", as_array(x), as_array(y)), np.einsum("i,i", x, y))
    same(products.einsum("i,->i", as_array(x), 2.0), np.einsum("i,->i", x, 2.0))
    same(products.einsum("i,i", as_array(x), as_array(x), dtype="float64"), np.einsum("i,i", x, x, dtype="float64"))
    unsafe: dict[str, Any] = {"dtype": "float16", "casting": "unsafe"}
    same(products.einsum("i,i", as_array(x), as_array(x), **unsafe), np.einsum("i,i", x, x, **unsafe))
    with pytest.raises(TypeError, match="casting"):
        products.einsum("i,i", as_array(x), as_array(x), dtype="float16")


@pytest.mark.parametrize(
    ("spelling", "shapes"),
    [
        ("ij->ijj", [(3, 2)]),
        ("ij->k", [(3, 2)]),
        ("ij", [(3,)]),
        ("i", [(3, 2)]),
        ("i,j", [(3,)]),
        ("i->", [(3,), (3,)]),
        ("i.", [(3,)]),
        ("i...j...", [(3, 2)]),
        ("i-j", [(3,)]),
        ("i->j->k", [(3,)]),
        ("1", [(3,)]),
        ("ä", [(3,)]),
        ("ii->i", [(1, 3)]),
        ("ij,jk", [(2, 2), (3, 4)]),
        ("...i->i", [(2, 3)]),
        ("...,...", [(2,), (3,)]),
    ],
)
def test_einsum_refuses(spelling: str, shapes: list[tuple[int, ...]]) -> None:
    values = [make(shape) for shape in shapes]
    with pytest.raises(ValueError):  # noqa: PT011 - NumPy's words differ
        np.einsum(spelling, *values)
    with pytest.raises(ValueError, match="einsum"):
        products.einsum(spelling, *map(as_array, values))


def test_einsum_refuses_bad_lists() -> None:
    x = as_array(make((3, 2)))
    with pytest.raises(ValueError, match="range"):
        products.einsum(x, [0, 52])
    with pytest.raises(TypeError, match="integer"):
        products.einsum(x, ["i", "j"])
    with pytest.raises(ValueError, match="one ellipsis"):
        products.einsum(x, [..., ...])
    with pytest.raises(ValueError, match="einsum takes"):
        products.einsum("ij")


def test_einsum_of_one_operand_is_a_view() -> None:
    values = make((3, 3))
    x = as_array(values)
    products.einsum("ii->i", x)[:] = 7
    np.einsum("ii->i", values)[:] = 7
    same(x, values)
    products.einsum("ij->ji", x)[0] = 1
    np.einsum("ij->ji", values)[0] = 1
    same(x, values)
    shown = products.einsum("ij", x)
    x[1, 1] = 5
    values[1, 1] = 5
    same(shown, values)
    turned = products.einsum("ii->i", products.einsum("ij->ji", x))
    x[0, 0] = 9
    assert float(turned[0]) == 9
    with pytest.raises(ValueError, match="Assign to the array itself"):
        turned[0] = 1


def test_einsum_contracts_pairs_once_each() -> None:
    x, y, z = (as_array(value) for value in operands("ij,jk,kl"))
    result = products.einsum("ij,jk,kl->il", x, y, z)
    assert contracts(result) == 2
    big, wide, vector = as_array(make((50, 60))), as_array(make((60, 70))), as_array(make((70,)))
    chain = products.einsum("ij,jk,k->i", big, wide, vector)
    assert chain.shape == (50,)
    assert max(spec.size for spec in chain.program.specs) == 60 * 70  # never the 50 × 70 matrix times the rest


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """Any sum over up to four operands, with axes of length 1 that broadcast and labels that repeat."""
    letters = "abcde"
    lengths = {letter: draw(st.integers(0 if letter == "e" else 1, 3)) for letter in letters}
    terms = draw(st.lists(st.text(letters, max_size=4), min_size=1, max_size=4))
    shapes = []
    for term in terms:
        once = {c: 1 if draw(st.integers(0, 5)) == 0 else lengths[c] for c in term}
        shapes.append(tuple(once[c] for c in term))
    used = sorted(set("".join(terms)))
    result = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    spelling = ",".join(terms)
    return (spelling if draw(st.booleans()) else f"{spelling}->{''.join(result)}"), shapes


@given(spellings())
@settings(max_examples=150, deadline=None)
def test_any_einsum(case: tuple[str, list[tuple[int, ...]]]) -> None:
    spelling, shapes = case
    values = [make(shape, "int64", seed=number) for number, shape in enumerate(shapes)]
    same(products.einsum(spelling, *map(as_array, values)), np.einsum(spelling, *values))


@st.composite
def stacks(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    full = draw(st.lists(st.integers(0, 3), max_size=3))
    sides = []
    for _ in range(2):
        kept = full[draw(st.integers(0, len(full))) :]
        sides.append(tuple(1 if draw(st.booleans()) else n for n in kept))
    rows, inner, columns = (draw(st.integers(0, 3)) for _ in range(3))
    return (*sides[0], rows, inner), (*sides[1], inner, columns)


@given(stacks())
@settings(max_examples=100, deadline=None)
def test_any_stack_of_matrices(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, y = make(shapes[0], "int32"), make(shapes[1], "int32")
    same(as_array(x) @ as_array(y), x @ y)


def test_nothing_is_computed() -> None:
    x = as_array(make((3, 3)))
    for result in (x @ x, products.einsum("ij,jk", x, x), products.trace(x), products.cross(x, x), products.kron(x, x)):
        assert not result._value.computed
    assert not any(isinstance(node.op, Iota) for node in (x @ x).program.nodes)
