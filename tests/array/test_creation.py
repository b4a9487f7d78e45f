"""Arrays from nothing, against NumPy's; and what they cost before anything is made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anygpu.array.core.array import Array
from anygpu.array.functions import types
from anygpu.array.functions.creation import asarray, from_dlpack
from anygpu.errors import InvalidOption
from anygpu.program.primitives import Constant, Input
from tests.array.agreement import KINDS, agree, check, np, numbers, our


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((5,), {}),
        ((2, 7), {}),
        ((7, 2, -2), {}),
        ((2, 7, -1), {}),
        ((3, 3), {}),
        ((0.0, 1.0, 0.1), {}),
        ((0.5, 5, 1.5), {"dtype": int}),
        ((-128, 127), {"dtype": "int8"}),
        ((5,), {"dtype": "float16"}),
        ((2**63, 2**63 + 5), {"dtype": "uint64"}),
        ((2,), {"dtype": bool}),
        ((3,), {"dtype": bool}),
        ((1, 5), {"dtype": "complex64"}),
        ((10, 0, -3), {"dtype": "uint8"}),
        ((4.5,), {"dtype": "float32"}),
        ((1e-3, 1, 0.25), {"dtype": "float32"}),
        ((1, 5, 0), {}),
        ((-1.5, 7.25, 0.75), {}),
    ],
)
def test_arange(arguments: Any, options: Any) -> None:
    agree(our, "arange", *arguments, **options)


SPACES = [
    ((0, 1), {}),
    ((0, 1, 5), {"endpoint": False}),
    ((3, 3, 4), {}),
    ((0, 10, 4), {"dtype": int}),
    ((-3.7, 4, 6), {"dtype": "int16"}),
    ((0, 1, 1), {}),
    ((0, 1, 1), {"endpoint": False}),
    ((0, 1, 0), {}),
    ((0, 1, -1), {}),
    ((np.array([0, 1]), np.array([5, 6]), 3), {}),
    ((np.array([0, 1.5]), 2, 3), {"axis": 1}),
    ((np.array([[0, 1.5]]), np.array([[2], [3]]), 3), {"axis": -1}),
    ((1j, 2, 3), {}),
    ((np.float32(0), np.float32(1), 7), {}),
    ((np.array(0, "float32"), np.array(1, "float32"), 7), {}),
]


@pytest.mark.parametrize(("arguments", "options"), [*SPACES, ((0, 5e-324, 3), {})])
def test_linspace(arguments: Any, options: Any) -> None:
    agree(our, "linspace", *arguments, **options)


@pytest.mark.parametrize(("arguments", "options"), SPACES)
def test_logspace(arguments: Any, options: Any) -> None:
    agree(our, "logspace", *arguments, **options, tolerance=1e-6)


def test_logspace_with_other_bases() -> None:
    agree(our, "logspace", 0, 1, 3, base=2)
    agree(our, "logspace", 0, 1, 3, base=np.array([2.0, 3.0]))
    agree(our, "logspace", 0, 1, 3, base=np.array([2.0, 3.0]), axis=-1)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((1, 1000, 4), {}),
        ((-1, -1000, 4), {}),
        ((1, np.array([10.0, 20]), 4), {"axis": -1}),
        ((1, 256, 9), {"dtype": int}),
        ((1j, 1000j, 4), {}),
        ((1, 1000, 3), {"endpoint": False}),
        ((1, 10, 1), {}),
        ((0, 10, 3), {}),
    ],
)
def test_geomspace(arguments: Any, options: Any) -> None:
    agree(our, "geomspace", *arguments, **options, tolerance=1e-12)


def test_linspace_ends_exactly_and_returns_its_step() -> None:
    ours, step = our.linspace(0.1, 0.7, 7, retstep=True)
    theirs, their_step = np.linspace(0.1, 0.7, 7, retstep=True)
    assert np.asarray(ours)[-1] == 0.7
    assert step == their_step
    assert np.array_equal(np.asarray(ours), theirs)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.integers(0, 40), st.booleans(), st.sampled_from(["float32", None])
)
def test_linspace_of_any_ends(start: float, stop: float, count: int, endpoint: bool, dtype: str | None) -> None:
    agree(our, "linspace", start, stop, count, endpoint=endpoint, dtype=dtype)


@settings(max_examples=60, deadline=None)
@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7).filter(bool), st.sampled_from(KINDS[1:]))
def test_arange_of_any_steps(start: int, stop: int, step: int, dtype: str) -> None:
    if dtype.startswith("uint"):
        start, stop, step = abs(start), abs(stop), abs(step)
    agree(our, "arange", start, stop, step, dtype=dtype)


@pytest.mark.parametrize("dtype", [None, *KINDS])
@pytest.mark.parametrize("name", ["zeros", "ones", "empty"])
def test_one_number_everywhere(name: str, dtype: str | None) -> None:
    for shape in ((), 3, (2, 0), (2, 3)):
        ours, theirs = (getattr(module, name)(shape, dtype=dtype) for module in (our, np))
        check(ours, theirs if name != "empty" else np.zeros_like(theirs), (name, shape))
    model = numbers((2, 3), "int16")
    ours, theirs = (getattr(module, f"{name}_like")(model, dtype=dtype) for module in (our, np))
    check(ours, theirs if name != "empty" else np.zeros_like(theirs), name)


@pytest.mark.parametrize(
    ("shape", "value", "dtype"),
    [
        ((2, 3), 7, None),
        (4, 1.5, None),
        ((), True, None),
        (3, 2j, None),
        (3, 300, "int8"),
        (3, 1.7, "int64"),
        (2, np.float32(3), None),
        ((2, 3), np.array([1, 2, 3]), None),
        ((2, 3), np.array([1, 2, 3]), "float32"),
        ((2, 3), [1, 2], None),
        ((-1,), 1, None),
    ],
)
def test_full(shape: Any, value: Any, dtype: Any) -> None:
    agree(our, "full", shape, value, dtype)
    agree(our, "full_like", numbers((2, 3), "int32"), value, dtype)


def test_constants_take_no_memory() -> None:
    """A thousand terabytes, as long as nobody looks at them."""
    for array in (our.zeros((1 << 20, 1 << 30)), our.arange(1 << 50), our.eye(1 << 24)):
        nodes = array.program.nodes
        assert not any(isinstance(node.op, Input) for node in nodes)
        assert sum(len(node.op.data) for node in nodes if isinstance(node.op, Constant)) < 100


def test_zeros_can_be_changed() -> None:
    ours, theirs = our.zeros((3, 4)), np.zeros((3, 4))
    for array in (ours, theirs):
        array[1] = 5
        array[:, ::2] += 1
    check(ours, theirs, "zeros")


@pytest.mark.parametrize("k", range(-5, 6))
@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (2, 3, 3), (3,), (0, 2)])
def test_triangles(shape: tuple[int, ...], k: int) -> None:
    agree(our, "tril", numbers(shape), k)
    agree(our, "triu", numbers(shape, "int32"), k)


@pytest.mark.parametrize("k", range(-5, 6))
def test_matrices(k: int) -> None:
    agree(our, "eye", 3, 4, k)
    agree(our, "eye", 0, k=k, dtype=bool)
    agree(our, "tri", 3, 4, k)
    agree(our, "tri", 4, k=k, dtype="int32")
    agree(our, "diag", numbers((3,)), k)
    agree(our, "diag", numbers((3, 4)), k)
    agree(our, "diagflat", numbers((2, 2), "int8"), k)
    agree(our, "diag", np.array([np.inf, np.nan, 1]), k)


def test_other_matrices() -> None:
    agree(our, "identity", 3)
    agree(our, "diag", numbers((2, 2, 2)))
    agree(our, "diag", np.array(1.0))
    for arguments in ((), (5,), (5, True), (0,), (1,)):
        agree(our, "vander", numbers((4,)), *arguments)
        agree(our, "vander", numbers((4,), "int8"), *arguments)
    agree(our, "vander", numbers((2, 2)))


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"indexing": "ij"}, {"copy": False}, {"indexing": "no"}])
def test_meshgrid(options: Any) -> None:
    agree(our, "meshgrid", numbers((3,)), numbers((2,), "int8"), [1], **options)
    agree(our, "meshgrid", numbers((3,)), **options)
    agree(our, "meshgrid", numbers((0,)), numbers((2,)), **options)
    agree(our, "meshgrid", **options)


def test_meshgrid_without_copy_does_not_let_itself_be_written_to() -> None:
    grid, _ = our.meshgrid(asarray([1, 2, 3]), asarray([4, 5]), copy=False)
    with pytest.raises(ValueError, match="copy=True"):
        grid[0, 0] = 1


def test_indices_and_functions_of_them() -> None:
    for shape in ((2, 3), (4,), (), (0, 2)):
        agree(our, "indices", shape)
        agree(our, "indices", shape, "float32")
        agree(our, "indices", shape, sparse=True)
    agree(our, "fromfunction", lambda i, j: i + 2 * j, (2, 3))
    agree(our, "fromfunction", lambda i, j, k: i * j + k, (2, 3), dtype=int, k=4)


# asarray


def test_an_array_is_itself_unless_something_else_is_asked_for() -> None:
    x = asarray([1.0, 2.0])
    assert asarray(x) is x
    assert asarray(x, dtype="float64") is x
    assert asarray(x, copy=False) is x
    assert asarray(x, copy=True) is not x
    assert asarray(x, dtype="float32").dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        asarray(x, dtype="float32", copy=False)


def test_numpy_arrays_are_copied_at_once() -> None:
    source = np.array([1.0, 2.0])
    x = asarray(source)
    source[0] = 9
    assert x.tolist() == [1.0, 2.0]
    for given_ in (source, [1, 2], 3, np.float32(3)):
        with pytest.raises(ValueError, match="copy"):
            asarray(given_, copy=False)


def test_lists_with_arrays_are_stacked_and_not_computed() -> None:
    x = asarray(np.arange(3.0)) * 2
    stacked = asarray([[x[0], 1], [2, x[1]]])
    assert "not computed" in repr(stacked)
    assert "not computed" in repr(x)
    check(stacked, np.array([[0.0, 1], [2, 2]]), "stacked")
    check(asarray([x, [1, 2, 3]]), np.array([[0.0, 2, 4], [1, 2, 3]]), "rows")
    check(asarray([x], dtype="int8"), np.array([[0, 2, 4]], "int8"), "typed")
    with pytest.raises(ValueError, match="one shape"):
        asarray([x, 1])


@pytest.mark.parametrize("dtype", KINDS)
def test_asarray_of_every_type(dtype: str) -> None:
    for shape in ((), (3,), (2, 0), (2, 3)):
        values = numbers(shape, dtype)
        check(asarray(values), values, dtype)
        check(asarray(values.tolist()), np.asarray(values.tolist()), dtype)
        check(asarray(values, dtype="complex128"), values.astype("complex128"), dtype)


def test_what_cannot_be_an_array_is_refused() -> None:
    with pytest.raises(OverflowError, match="too large"):
        asarray(2**70)
    with pytest.raises(TypeError, match="anygpu has no arrays of"):
        asarray("words")
    with pytest.raises(ValueError, match="inhomogeneous"):
        asarray([[1], [1, 2]])


def test_the_order_of_bytes_does_not_matter() -> None:
    check(asarray(np.arange(3, dtype=">i4")), np.arange(3, dtype="int32"), "big-endian")
    check(asarray(np.array(3, dtype=">f8")), np.array(3.0), "big-endian")


def test_dlpack_shares_memory_where_that_is_possible() -> None:
    source = np.arange(3.0)
    shared = from_dlpack(source)
    source[0] = 7
    assert shared.tolist() == [7.0, 1.0, 2.0]
    copied = from_dlpack(source, copy=True)
    source[0] = 9
    assert copied.tolist() == [7.0, 1.0, 2.0]
    assert from_dlpack(source, copy=False).tolist() == [9.0, 1.0, 2.0]
    with pytest.raises(TypeError, match="DLPack"):
        from_dlpack([1, 2])


def test_dlpack_from_torch_and_from_ourselves() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    assert from_dlpack(tensor).tolist() == tensor.tolist()
    mine = asarray(tensor)
    tensor[0, 0] = 5
    assert mine.tolist() == [[0, 1, 2], [3, 4, 5]]
    x = asarray([1, 2])
    again = from_dlpack(x)
    x[0] = 8
    assert again.tolist() == [8, 2]


def test_devices_are_kept() -> None:
    x = asarray([1.0], device="torch")
    assert x.device == "torch:cpu"
    for array in (
        our.zeros(3, device="torch"),
        our.arange(3, device="torch"),
        our.full((), 1, device="torch"),
        our.eye(2, device="torch"),
        our.linspace(0, 1, 3, device="torch"),
        our.ones_like(x),
        asarray(3, device="torch"),
        asarray([x, [2]]),
        our.full(2, x[0]),
    ):
        assert array.device == "torch:cpu"
        assert array.compute().device == "torch:cpu"
    moved = asarray(x, device="numpy")
    assert (moved.device, moved.tolist()) == ("numpy", [1.0])


# Types


def test_what_types_can_hold() -> None:
    for name in ("float16", "float32", "float64", "complex64", "complex128"):
        ours, theirs = types.finfo(name), np.finfo(name)
        for fact in ("bits", "eps", "max", "min", "smallest_normal", "tiny", "dtype"):
            assert getattr(ours, fact) == getattr(theirs, fact)
        assert type(ours.eps) is float
    assert types.iinfo(asarray([1], dtype="int8")).max == 127
    assert types.finfo(asarray([1.0])).dtype == np.float64


def test_kinds_and_promotion() -> None:
    x = asarray([1], dtype="int8")
    assert types.result_type(x, 1) == types.int8
    assert types.result_type(x, types.float32, 1.5) == types.float32
    assert types.can_cast(x, "int16")
    assert not types.can_cast(types.float64, "int16")
    assert types.isdtype(types.float32, ("bool", "real floating"))
    assert types.isdtype(np.int8, types.int8)
    assert types.astype(x, "float32").dtype == np.float32
    assert types.astype(x, "int8", copy=False) is x
    assert types.bool == types.bool_ == np.dtype(bool)


def test_types_that_numpy_names() -> None:
    assert types.common_type(asarray([1], dtype="int8"), asarray([1.5], dtype="float32")) is np.float64
    assert types.common_type(asarray([1.5], dtype="float32")) is np.float32
    assert types.min_scalar_type(asarray(300)) == np.uint16
    assert types.min_scalar_type(asarray([300])) == np.int64
    copy = our.copy(source := asarray([1, 2]))
    source[0] = 9
    assert copy.tolist() == [1, 2]


def test_what_the_namespace_says_of_itself() -> None:
    info = types.__array_namespace_info__()
    assert info.capabilities()["data-dependent shapes"]
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] == np.float64
    assert set(info.dtypes(kind="bool")) == {"bool"}
    assert set(info.dtypes(kind=("complex floating", "bool"))) == {"bool", "complex64", "complex128"}
    assert len(info.dtypes()) == 13
    with pytest.raises(ValueError, match="kind"):
        info.dtypes(kind="odd")


def test_an_array_is_the_result() -> None:
    assert all(isinstance(each, Array) for each in (our.zeros(1), our.arange(2), asarray(1)))


def test_what_is_more_than_its_numbers_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"a MaskedArray is more than its numbers\. Pass x\.filled\(value\)"):
        asarray(np.ma.masked_array([1.0, 2.0], [False, True]))
