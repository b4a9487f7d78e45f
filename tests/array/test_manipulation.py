"""Other shapes and orders against NumPy's: values, and what writing into the results does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.core.array import Array
from anygpu.array.functions import numeric, padding
from anygpu.array.functions.creation import asarray
from tests.array.agreement import KINDS, agree, check, np, numbers, our

CUBE = numbers((2, 3, 4), "int32")
MATRIX = numbers((3, 5))
VECTOR = numbers((7,), "float32")
POINT = np.array(3.5)
EMPTY = numbers((2, 0, 3))
SAMPLES = (CUBE, MATRIX, VECTOR, POINT, EMPTY, np.ones((1, 3, 1), bool))


def name_of(case: Any) -> str:
    return f"{case[0]}{case[1:]}"


SHAPES: list[tuple[Any, ...]] = [
    ("reshape", -1),
    ("reshape", (4, -1)),
    ("reshape", (5, 3)),
    ("reshape", (-1, -1)),
    ("reshape", (3, 5), "F"),
    ("ravel",),
    ("ravel", "F"),
    ("expand_dims", 0),
    ("expand_dims", -1),
    ("expand_dims", (0, 2)),
    ("expand_dims", 9),
    ("squeeze",),
    ("squeeze", 0),
    ("squeeze", (0, -1)),
    ("transpose",),
    ("transpose", (1, 0)),
    ("transpose", (-1, 0, 1)),
    ("transpose", (0, 0, 1)),
    ("permute_dims", (2, 0, 1)),
    ("matrix_transpose",),
    ("swapaxes", 0, -1),
    ("swapaxes", 0, 5),
    ("moveaxis", 0, -1),
    ("moveaxis", (0, 1), (-1, 0)),
    ("moveaxis", (0, 1), (0,)),
    ("moveaxis", (0, 0), (0, 1)),
    ("rollaxis", 1),
    ("rollaxis", 2, 0),
    ("rollaxis", 0, 3),
    ("rollaxis", -1, 1),
    ("flip",),
    ("flip", 0),
    ("flip", (0, -1)),
    ("fliplr",),
    ("flipud",),
    ("rot90",),
    ("rot90", 2),
    ("rot90", -1, (1, 0)),
    ("rot90", 4),
    ("rot90", 1, (0, 0)),
    ("diagonal",),
    ("diagonal", 1),
    ("diagonal", -1),
    ("diagonal", 9),
    ("diagonal", 1, -1, 0),
    ("diagonal", 0, 1, 1),
    ("atleast_1d",),
    ("atleast_2d",),
    ("atleast_3d",),
    ("repeat", 2),
    ("repeat", 0),
    ("repeat", 3, -1),
    ("repeat", [1, 0, 2], 1),
    ("repeat", [2], 0),
    ("tile", 2),
    ("tile", (2, 1)),
    ("tile", (2, 1, 1, 3)),
    ("tile", 0),
    ("tile", ()),
    ("resize", (2, 4)),
    ("resize", 30),
    ("resize", ()),
    ("roll", 1),
    ("roll", -3),
    ("roll", 100, 0),
    ("roll", (1, 2), (0, 1)),
    ("roll", 2, (0, -1)),
    ("roll", (1, 2), (0, 0)),
    ("roll", (1, 2, 3), (0, 1)),
    ("broadcast_to", (2, 2, 3, 4)),
    ("broadcast_to", (3, 5)),
    ("broadcast_to", (3, 3, 3)),
    ("broadcast_to", ()),
    ("array_split", 3),
    ("array_split", 2, -1),
    ("array_split", [1, 2], 1),
    ("array_split", [2, 1]),
    ("array_split", 0),
    ("split", 3),
    ("split", 1, 0),
    ("hsplit", 3),
    ("vsplit", [1]),
    ("dsplit", 2),
    ("trim_zeros",),
    ("trim_zeros", "f"),
    ("trim_zeros", "b", 0),
    ("trim_zeros", "x"),
]


@pytest.mark.parametrize("case", SHAPES, ids=name_of)
def test_other_shapes(case: Any) -> None:
    for sample in SAMPLES:
        agree(our, case[0], sample, *case[1:])


def test_unstack() -> None:
    for sample, axis in itertools.product((CUBE, MATRIX, EMPTY), (0, -1, 1, 3)):
        agree(our, "unstack", sample, axis=axis)


def test_facts_of_an_array() -> None:
    for sample in SAMPLES:
        x = asarray(sample)
        assert our.shape(x) == np.shape(sample)
        assert our.ndim(x) == np.ndim(sample)
        assert our.size(x) == np.size(sample)
    assert our.size(asarray(CUBE), -1) == 4
    assert our.ndim([[1, 2]]) == 2


@pytest.mark.parametrize("dtype", KINDS)
def test_movement_keeps_every_type(dtype: str) -> None:
    sample = numbers((3, 4), dtype)
    agree(our, "transpose", sample)
    agree(our, "tile", sample, 2)
    agree(our, "roll", sample, 1, 1)
    agree(our, "concatenate", [sample, numbers((1, 4), "int16")])
    agree(padding, "pad", sample, 1)


@pytest.mark.parametrize(
    ("shape", "window", "axis"),
    [
        ((7,), 3, None),
        ((5, 6), (2, 3), None),
        ((5, 6), 2, 1),
        ((5, 6), (2, 2), (1, 0)),
        ((5, 6), (2, 2), (1, 1)),
        ((3, 4), (2, 3), 1),
        ((3,), 4, None),
    ],
)
def test_windows(shape: Any, window: Any, axis: Any) -> None:
    reference = np.lib.stride_tricks.sliding_window_view
    agree(our, "sliding_window_view", numbers(shape), window, axis, reference=reference)


def test_broadcasting_together() -> None:
    agree(our, "broadcast_arrays", VECTOR, numbers((3, 1), "int8"))
    agree(our, "broadcast_arrays", VECTOR, VECTOR)
    agree(our, "broadcast_arrays", VECTOR, MATRIX)
    assert our.broadcast_shapes((3, 1), 4, (1, 1)) == (3, 4)
    with pytest.raises(ValueError, match="broadcast"):
        our.broadcast_shapes((3,), (4,))


# Views

VIEWS: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("reshape", lambda module, x: module.reshape(x, (4, 6))),
    ("ravel", lambda module, x: module.ravel(x)),
    ("expand_dims", lambda module, x: module.expand_dims(x, 1)),
    ("squeeze", lambda module, x: module.squeeze(x)),
    ("transpose", lambda module, x: module.transpose(x)),
    ("moveaxis", lambda module, x: module.moveaxis(x, 0, -1)),
    ("flip", lambda module, x: module.flip(x, (0, 2))),
    ("rot90", lambda module, x: module.rot90(x)),
    ("rot90 three times", lambda module, x: module.rot90(x, 3)),
    ("rot90 not at all", lambda module, x: module.rot90(x, 0)),
    ("swapaxes", lambda module, x: module.swapaxes(x, 0, 1)),
    ("matrix_transpose", lambda module, x: module.matrix_transpose(x)),
    ("split", lambda module, x: module.split(x, 2)[1]),
    ("array_split", lambda module, x: module.array_split(x, 3, 2)[1]),
    ("unstack", lambda module, x: module.unstack(x, axis=1)[1]),
    ("atleast_3d", lambda module, x: module.atleast_3d(x)),
    ("trim_zeros", lambda module, x: module.trim_zeros(x)),
    ("flip of transpose", lambda module, x: module.flip(module.transpose(x), 1)),
    ("part of rot90", lambda module, x: module.rot90(x)[1:, ::2]),
]


@pytest.mark.parametrize(("name", "look"), VIEWS, ids=[name for name, _ in VIEWS])
def test_what_is_written_into_a_view_is_in_its_base(name: str, look: Callable[[Any, Any], Any]) -> None:
    ours, theirs = asarray(CUBE), CUBE.copy()
    for module, base in ((our, ours), (np, theirs)):
        seen = look(module, base)
        seen[0] = 77
        seen += 1
    check(ours, theirs, name)
    ours[:] = 5
    theirs[:] = 5
    check(look(our, ours), look(np, theirs), name)


COPIES: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("reshape with copy", lambda module, x: module.reshape(x, (4, 6), copy=True)),
    ("repeat", lambda module, x: module.repeat(x, 1, 0)),
    ("tile", lambda module, x: module.tile(x, 1)),
    ("roll by nothing", lambda module, x: module.roll(x, 0)),
    ("concatenate of one", lambda module, x: module.concatenate([x])),
    ("delete of nothing", lambda module, x: module.delete(x, [], 0)),
    ("pad by nothing", lambda module, x: (padding if module is our else module).pad(x, 0)),
    ("resize", lambda module, x: module.resize(x, x.shape)),
]


@pytest.mark.parametrize(("name", "make"), COPIES, ids=[name for name, _ in COPIES])
def test_copies_are_not_views(name: str, make: Callable[[Any, Any], Any]) -> None:
    ours, theirs = asarray(CUBE), CUBE.copy()
    for module, base in ((our, ours), (np, theirs)):
        copy = make(module, base)
        copy[0] = 77
        base[1] = 66
    check(ours, theirs, name)
    check(copy_of(make, ours), make(np, theirs), name)


def copy_of(make: Callable[[Any, Any], Any], base: Array) -> Array:
    result: Array = make(our, base)
    return result


@pytest.mark.parametrize(
    "look",
    [
        lambda x: our.broadcast_to(x, (2, 2, 3, 4)),
        lambda x: our.diagonal(x),
        lambda x: our.sliding_window_view(x, 2, 0),
    ],
)
def test_views_that_refuse_to_be_written_to_say_what_to_do(look: Callable[[Array], Array]) -> None:
    x = asarray(CUBE)
    seen = look(x)
    with pytest.raises(ValueError, match="Write"):
        seen[0] = 1
    x[:] = 7
    assert set(np.asarray(seen).ravel()) == {7}


def test_reshape_and_repeat_refuse() -> None:
    x = asarray(MATRIX)
    assert our.reshape(x, (5, 3), copy=False).base is x
    with pytest.raises(ValueError, match="copy"):
        our.reshape(our.transpose(x), (3, 5), copy=False)
    with pytest.raises(NotImplementedError, match="order"):
        our.reshape(x, (5, 3), order="A")
    with pytest.raises(ValueError, match="-1"):
        our.reshape(x, (-2, 3))
    with pytest.raises(ValueError, match="0 or more"):
        our.repeat(x, -1)
    with pytest.raises(TypeError, match="one integer"):
        our.repeat(x, 1.5)


# Several into one

PARTS = [numbers((2, 3), "int8"), numbers((1, 3), "float32"), numbers((4, 3), "uint8")]


@pytest.mark.parametrize("name", ["concatenate", "concat", "stack", "vstack", "hstack", "dstack", "column_stack"])
def test_joining(name: str) -> None:
    matrices = [numbers((2, 3), dtype, seed) for seed, dtype in enumerate(("int8", "uint8", "float16"))]
    for parts in (PARTS, matrices, tuple(matrices), [VECTOR, VECTOR], [POINT, POINT], [CUBE], [CUBE, CUBE], [], CUBE):
        agree(our, name, parts)
    for axis in (0, 1, -1, None, 2, 5):
        if name in ("concatenate", "concat", "stack") and not (name == "stack" and axis is None):
            agree(our, name, matrices, axis=axis)
            agree(our, name, [EMPTY, EMPTY], axis=axis)
    agree(our, name, [VECTOR, [1, 2, 3]])
    agree(our, name, [np.array([1, 2]), 3.5])


def test_joining_into_another_type_or_array() -> None:
    agree(our, "concatenate", PARTS, dtype="complex64")
    agree(our, "concatenate", PARTS, dtype="int32")
    agree(our, "concatenate", PARTS, dtype="int32", casting="unsafe")
    agree(our, "vstack", PARTS, dtype="float64")
    target = asarray(np.zeros((7, 3)))
    assert our.concatenate([asarray(part) for part in PARTS], out=target) is target
    check(target, np.concatenate(PARTS, out=np.zeros((7, 3))), "out")


def test_blocks() -> None:
    a, b, c = numbers((2, 2)), numbers((2, 3)), numbers((1, 5), "int8")
    for blocks in ([[a, b], [c]], [a, b], a, [[a], [a]], [VECTOR, 1], [[1, 2], [3, 4]], [[[a]]]):
        agree(our, "block", blocks)
    agree(our, "block", [[a, b], c])
    agree(our, "block", [a, []])


@pytest.mark.parametrize("axis", [None, 0, 1, -1, 2])
def test_append_and_delete(axis: int | None) -> None:
    agree(our, "append", MATRIX, MATRIX, axis)
    agree(our, "append", VECTOR, [1, 2], axis)
    for positions in (
        0,
        -1,
        [0, 2],
        [],
        [1, 1, -1],
        slice(None, None, 2),
        slice(2, 0, -1),
        slice(3, 3),
        99,
        [True, False],
    ):
        agree(our, "delete", MATRIX, positions, axis)
        agree(our, "delete", VECTOR, positions, axis)
    agree(our, "delete", MATRIX, np.array([True, False, True]), 0)
    agree(our, "delete", MATRIX, np.array([0.5]), 0)


@pytest.mark.parametrize(
    ("position", "new", "axis"),
    [
        (1, 9, None),
        (-1, [1, 2], None),
        ([1, 3], [7, 8], None),
        ([3, 1, 1], [7, 8, 9], None),
        ([], [], None),
        (slice(0, 4, 2), 5, None),
        (1, np.arange(5), 0),
        (1, np.arange(3), 1),
        ([1], np.arange(3)[:, None], 1),
        ([0, 2], 1.5, 1),
        ([0, 2], np.arange(5), 0),
        ([0, 2], np.arange(2), 1),
        (3, np.arange(10).reshape(2, 5), 0),
        (1, np.arange(6).reshape(3, 2), 1),
        (99, 1, None),
        ([99, 1], 1, None),
        ([[1, 2]], 1, None),
    ],
)
def test_insert(position: Any, new: Any, axis: int | None) -> None:
    agree(our, "insert", MATRIX, position, new, axis)
    agree(our, "insert", numbers((3, 5), "int16"), position, new, axis)


# Borders


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("constant", {}),
        ("constant", {"constant_values": 7}),
        ("constant", {"constant_values": (1, 2)}),
        ("constant", {"constant_values": ((1, 2), (3, 4))}),
        ("constant", {"end_values": 1}),
        ("edge", {}),
        ("reflect", {}),
        ("reflect", {"reflect_type": "odd"}),
        ("symmetric", {}),
        ("symmetric", {"reflect_type": "odd"}),
        ("wrap", {}),
        ("linear_ramp", {}),
        ("linear_ramp", {"end_values": (3, -4)}),
        ("maximum", {}),
        ("minimum", {"stat_length": 2}),
        ("mean", {}),
        ("mean", {"stat_length": ((1, 2), (2, 1))}),
        ("median", {"stat_length": 3}),
        ("nonsense", {}),
    ],
)
def test_pad(mode: str, options: Any) -> None:
    for dtype in ("float64", "int32", "float32"):
        for width in (0, 2, (1, 3), ((0, 1), (4, 0)), ((7, 9), (6, 11)), [[2]], {1: 2}, {-2: (1, 0)}):
            agree(padding, "pad", numbers((3, 4), dtype), width, mode, **options)
        agree(padding, "pad", numbers((3,), dtype), (5, 3), mode, **options)
        agree(padding, "pad", numbers((1, 2), dtype), 3, mode, **options)


def test_pad_refuses() -> None:
    for width in (-1, 1.5, (1, 2, 3), ((1, 2),) * 3):
        agree(padding, "pad", MATRIX, width)
    agree(padding, "pad", EMPTY, 1, "edge")
    agree(padding, "pad", EMPTY, ((1, 1), (0, 0), (2, 0)), "edge")
    agree(padding, "pad", EMPTY, 1)
    agree(padding, "pad", POINT, 1)
    with pytest.raises(NotImplementedError, match="mode"):
        padding.pad(asarray(MATRIX), 1, lambda *_: None)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.tuples(st.integers(0, 14), st.integers(0, 14)),
    st.sampled_from(["reflect", "symmetric", "wrap", "edge"]),
    st.booleans(),
)
def test_pad_of_any_width(length: int, width: tuple[int, int], mode: str, odd: bool) -> None:
    options: Any = {"reflect_type": "odd"} if odd and mode in ("reflect", "symmetric") else {}
    agree(padding, "pad", np.arange(length) ** 2, width, mode, **options)


# In place


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("copyto", (3,)),
        ("copyto", (np.arange(5.0),)),
        ("copyto", (np.arange(4.0),)),
        ("copyto", (1j,)),
        ("copyto", (np.arange(5), "no")),
        ("copyto", (np.arange(5), "same_kind", np.array([True, False, True, False, True]))),
        ("putmask", (MATRIX > 0, np.arange(4))),
        ("putmask", (MATRIX > 0, 7)),
        ("putmask", (MATRIX > 0, [])),
        ("putmask", (np.array([True]), 1)),
        ("place", (MATRIX > 0, np.arange(3))),
        ("place", (MATRIX > 99, [])),
        ("place", (MATRIX > 0, [])),
        ("put", ([0, 3, -1], [1, 2, 3])),
        ("put", ([0, 3, 7], 5)),
        ("put", ([0, 99], [1, 2])),
        ("put", ([0, 99, -99], [1, 2], "wrap")),
        ("put", ([0, 99, -99], [1, 2], "clip")),
        ("put", ([], [])),
    ],
)
def test_changes_in_place(name: str, arguments: Any) -> None:
    for dtype in ("float64", "int32"):
        ours, theirs = asarray(MATRIX.astype(dtype)), MATRIX.astype(dtype)
        error = _error(getattr(np, name), theirs, *arguments)
        found = _error(getattr(our, name), ours, *arguments) or _error(ours.compute)
        assert (error is None) == (found is None), (error, found)
        if error is None:
            check(ours, theirs, name)


def _error(run: Callable[..., Any], *arguments: Any) -> Exception | None:
    try:
        run(*arguments)
    except (TypeError, ValueError, IndexError) as error:
        return error
    return None


def test_changes_in_place_go_through_views() -> None:
    x = asarray(np.zeros((3, 4)))
    our.put(our.transpose(x)[1:2], [0, 2], [5, 6])
    our.copyto(x[:, 3:4], 1)
    assert x.tolist() == [[0, 5, 0, 1], [0, 0, 0, 1], [0, 6, 0, 1]]


def test_copying_to_numpy() -> None:
    target = np.zeros(3)
    our.copyto(target, asarray([1, 2, 3]))
    assert target.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="Array"):
        our.put(target, asarray([0]), 1)


# Positions


@pytest.mark.parametrize("order", ["C", "F"])
def test_positions(order: str) -> None:
    agree(our, "unravel_index", np.array([3, 0, 11]), (3, 4), order)
    agree(our, "unravel_index", np.array(7), (3, 4), order)
    agree(our, "unravel_index", np.array([12]), (3, 4), order)
    agree(our, "unravel_index", np.array([1.5]), (3, 4), order)
    index = (np.array([0, 2, 1]), np.array([3, 0, 1]))
    agree(our, "ravel_multi_index", index, (3, 4), order=order)
    agree(our, "ravel_multi_index", (np.array([5, -1]), np.array([7, 1])), (3, 4), order=order)
    for mode in ("wrap", "clip", ("wrap", "clip")):
        agree(our, "ravel_multi_index", (np.array([5, -1]), np.array([7, -9])), (3, 4), mode=mode, order=order)


# Line by line, and bit by bit


def test_functions_of_lines() -> None:
    for axis in (0, 1, -1, 5):
        agree(our, "apply_along_axis", lambda line: line * 2, axis, CUBE)
        agree(our, "apply_along_axis", lambda line: line.sum(), axis, CUBE)
        agree(our, "apply_along_axis", lambda line: line[:2, None] * line[None, :1], axis, CUBE)
        agree(our, "apply_along_axis", lambda line, by: line[0] + by, axis, CUBE, 3)
    agree(our, "apply_along_axis", lambda line: line, 1, numbers((0, 3)))
    agree(our, "apply_over_axes", lambda x, axis: x.sum(axis=axis), CUBE, [0, 2])
    agree(our, "apply_over_axes", lambda x, axis: x.max(axis, keepdims=True), CUBE, -1)
    agree(our, "apply_over_axes", lambda x, axis: x.sum(), CUBE, 0)


@pytest.mark.parametrize("wrap", [False, True])
def test_filling_diagonals(wrap: bool) -> None:
    for shape in ((3, 3), (5, 3), (3, 5), (7, 2), (3, 3, 3), (0, 2)):
        for value in (7, [1, 2]):
            ours, theirs = asarray(numbers(shape)), numbers(shape)
            our.fill_diagonal(ours, value, wrap)
            np.fill_diagonal(theirs, value, wrap)
            check(ours, theirs, shape)
    for wrong in (numbers((3,)), numbers((2, 3, 2))):
        with pytest.raises(ValueError, match="axes"):
            our.fill_diagonal(asarray(wrong), 1)


@pytest.mark.parametrize("order", ["big", "little"])
def test_bits(order: str) -> None:
    for shape in ((5,), (8,), (3, 17), (0,)):
        for axis in (None, 0, -1):
            agree(numeric, "packbits", numbers(shape, "bool"), axis, order)
            agree(numeric, "packbits", numbers(shape, "int16"), axis, order)
            # NumPy fills up an empty array with whatever is in memory.
            for count in (None, 3, 60, -3) if shape != (0,) else (None,):
                agree(numeric, "unpackbits", numbers(shape, "uint8") * 29, axis, count, order)
    agree(numeric, "packbits", numbers((3,)))
    agree(numeric, "unpackbits", numbers((3,), "int8"))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_chains_of_movements(data: st.DataObject) -> None:
    """Any movements after each other give what NumPy gives, and so does writing at the end."""
    ours, theirs = asarray(CUBE), CUBE.copy()
    x, y = ours, theirs
    for _ in range(data.draw(st.integers(1, 4))):
        name = data.draw(st.sampled_from(["transpose", "flip", "expand_dims", "squeeze", "half", "moveaxis"]))
        if name == "half":
            cut = (slice(None), slice(None, None, 2)) if y.ndim > 1 else slice(1, None)
            x, y = x[cut], y[cut]
        elif name == "moveaxis" and y.ndim:
            x, y = our.moveaxis(x, 0, -1), np.moveaxis(y, 0, -1)
        elif name == "expand_dims":
            x, y = our.expand_dims(x, 0), np.expand_dims(y, 0)
        elif name != "moveaxis":
            x, y = getattr(our, name)(x), getattr(np, name)(y)
    check(x, y, "seen")
    x[...] = 50
    y[...] = 50
    check(ours, theirs, "base")
