"""Fourier transforms against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anygpu.fft
from anygpu.array.core.array import Array, as_array
from anygpu.array.functions import fourier
from anygpu.base.typing import HostArray

TOLERANCE = {
    "float16": 5e-3,
    "float32": 1e-5,
    "complex64": 1e-5,
    **dict.fromkeys(("float64", "complex128", "int8", "bool"), 1e-12),
}
TYPES = ["bool", "int8", "uint32", "int64", "float16", "float32", "float64", "complex64", "complex128"]
REAL = [dtype for dtype in TYPES if not dtype.startswith("complex")]
NORMS: list[Any] = [None, "backward", "ortho", "forward"]


def make(shape: tuple[int, ...], dtype: str = "float64") -> HostArray:
    rng = np.random.default_rng(sum(shape))
    values = rng.normal(size=shape) * 3
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.normal(size=shape)
    return (
        np.asarray(values > 0)
        if dtype == "bool"
        else np.abs(values).astype(dtype)
        if dtype[0] == "u"
        else values.astype(dtype)
    )


def close(ours: Array, theirs: Any, loosely: bool = False) -> None:
    expected = np.asarray(theirs)
    assert isinstance(ours, Array)
    assert ours.shape == expected.shape
    assert ours.dtype == expected.dtype
    tolerance = TOLERANCE["float16" if loosely else expected.dtype.name]
    np.testing.assert_allclose(np.asarray(ours), expected, rtol=tolerance, atol=tolerance * 20)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("norm", NORMS)
def test_one_axis(name: str, dtype: str, norm: Any) -> None:
    x = make((4, 7), dtype)
    if name in ("rfft", "ihfft") and dtype.startswith("complex"):
        with pytest.raises(TypeError, match="real numbers"):
            getattr(fourier, name)(as_array(x), norm=norm)
        return
    ours, theirs = getattr(fourier, name), getattr(np.fft, name)
    loosely = dtype == "float16"  # NumPy rounds the scale itself to half precision
    for arguments in ((), (1,), (2,), (5,), (6,), (11,), (12,), (5, 0), (None, -2)):
        close(ours(as_array(x), *arguments, norm=norm), theirs(x, *arguments, norm=norm), loosely)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2"])
@pytest.mark.parametrize("norm", NORMS)
def test_several_axes(name: str, norm: Any) -> None:
    ours, theirs = getattr(fourier, name), getattr(np.fft, name)
    for dtype in ("int16", "float32", "float64") if name.startswith("r") else ("float32", "complex64", "complex128"):
        x = make((3, 4, 5), dtype)
        close(ours(as_array(x), norm=norm), theirs(x, norm=norm))
        close(ours(as_array(x), axes=(0, 2), norm=norm), theirs(x, axes=(0, 2), norm=norm))
        close(ours(as_array(x), axes=(-1, 0), norm=norm), theirs(x, axes=(-1, 0), norm=norm))
        close(ours(as_array(x), s=(6, 3), axes=(0, 1), norm=norm), theirs(x, s=(6, 3), axes=(0, 1), norm=norm))
        close(ours(as_array(x), s=(-1, 7), axes=(0, 1), norm=norm), theirs(x, s=(-1, 7), axes=(0, 1), norm=norm))
        close(ours(as_array(x), axes=[1], norm=norm), theirs(x, axes=[1], norm=norm))


def test_an_axis_named_twice_is_transformed_twice() -> None:
    x = make((3, 4), "complex128")
    close(fourier.fftn(as_array(x), axes=(0, 0)), np.fft.fftn(x, axes=(0, 0)))


def test_no_axes() -> None:
    x = make((2, 3))
    close(fourier.fftn(as_array(x), axes=()), np.fft.fftn(x, axes=()))
    with pytest.raises(IndexError, match="at least one axis"):
        fourier.rfftn(as_array(x), axes=())


def test_lengths_without_axes_are_those_of_the_last() -> None:
    x = make((2, 3, 4))
    close(fourier.fftn(as_array(x), s=(5, 2)), np.fft.fftn(x, s=(5, 2), axes=(-2, -1)))


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_what_cannot_be_transformed(name: str) -> None:
    call = getattr(fourier, name)
    x = as_array(make((4,)))
    for n in (0, -1):
        with pytest.raises(ValueError, match="Invalid number of FFT data points"):
            call(x, n)
    with pytest.raises(ValueError, match="Invalid norm value other"):
        call(x, norm="other")
    with pytest.raises(np.exceptions.AxisError):
        call(x, axis=1)
    with pytest.raises(np.exceptions.AxisError):
        call(as_array(1.0))
    with pytest.raises(ValueError, match="Invalid number of FFT data points"):
        call(as_array(np.zeros((3, 0))))


def test_empty_stacks() -> None:
    x = np.zeros((0, 4))
    for name in ("fft", "ifft", "rfft", "irfft"):
        close(getattr(fourier, name)(as_array(x)), getattr(np.fft, name)(x))
    close(fourier.fft(as_array(np.zeros(0)), 3), np.fft.fft(np.zeros(0), 3))


def test_lengths_and_axes_must_fit() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        fourier.fftn(as_array(make((2, 3))), s=(2,), axes=(0, 1))
    with pytest.raises(np.exceptions.AxisError):
        fourier.fft2(as_array(make((3,))))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("d", [1.0, 0.1, 3])
def test_frequencies(n: int, d: float) -> None:
    for name in ("fftfreq", "rfftfreq"):
        ours, theirs = getattr(fourier, name)(n, d), getattr(np.fft, name)(n, d)
        close(ours, theirs)
        np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_frequencies_with_options() -> None:
    close(fourier.fftfreq(5, dtype="float32"), np.fft.fftfreq(5).astype("float32"))
    assert fourier.rfftfreq(5, device="numpy").device == "numpy"
    assert fourier.fftfreq(5, device="numpy").device == "numpy"
    close(fourier.fftfreq(4, as_array(0.5)), np.fft.fftfreq(4, 0.5))
    for call in (fourier.fftfreq, fourier.rfftfreq):
        with pytest.raises(ValueError, match="n should be an integer"):
            call(2.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="0 or more"):
            call(-3)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (5,), (0,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("name", ["fftshift", "ifftshift"])
def test_shifts(shape: tuple[int, ...], name: str) -> None:
    ours, theirs = getattr(fourier, name), getattr(np.fft, name)
    for dtype in ("int8", "complex64", "bool"):
        x = make(shape, dtype)
        if shape:  # NumPy itself stumbles over an array without axes
            close(ours(as_array(x)), theirs(x))
            close(ours(as_array(x), -1), theirs(x, -1))
            close(ours(as_array(x), (0,)), theirs(x, (0,)))
            close(ours(as_array(x), ()), x)
        else:
            close(ours(as_array(x)), x)
    with pytest.raises(np.exceptions.AxisError):
        ours(as_array(make((3,))), axes=3)


def test_a_shift_is_a_copy() -> None:
    x = as_array(make((1,)))
    shifted = fourier.fftshift(x)
    x[0] = 100
    assert float(shifted[0]) != 100


@given(st.integers(1, 12), st.integers(1, 14), st.sampled_from(NORMS), st.sampled_from(["float32", "float64"]))
@settings(max_examples=60, deadline=None)
def test_inverses(length: int, n: int, norm: Any, dtype: str) -> None:
    x = make((2, length), dtype)
    cut = np.zeros((2, n), dtype)
    cut[:, : min(n, length)] = x[:, :n]
    array = as_array(x)
    close(fourier.irfft(fourier.rfft(array, n, norm=norm), n, norm=norm), cut)
    there_and_back = fourier.ifft(fourier.fft(array, n, norm=norm), norm=norm)
    close(there_and_back, cut.astype(there_and_back.dtype))


def test_nothing_is_computed() -> None:
    x = as_array(make((4, 4)))
    for result in (fourier.fft(x), fourier.rfftn(x), fourier.fftshift(x), fourier.fftfreq(3)):
        assert not result._value.computed


def test_public_names_are_numpys() -> None:
    assert set(anygpu.fft.__all__) == set(np.fft.__all__)
    for name in anygpu.fft.__all__:
        assert getattr(anygpu.fft, name) is getattr(fourier, name)
