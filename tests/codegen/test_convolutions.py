"""Contractions that are convolutions: found whatever they look like, computed directly, and right on real devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.convolutions import Convolution, convolution_of
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.engines.codegen.templates.convolution import ConvolutionTiling as Direct
from anygpu.engines.codegen.templates.matmul import Tiling
from anygpu.program.graph import Program
from anygpu.program.primitives import Contract
from benchmarks.handwritten.workloads import convolution
from tests.codegen.planning import LEAST, TARGETS, names, plan, spec
from tests.engines.compiled import NAMES, Running, running

windows = np.lib.stride_tricks.sliding_window_view
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def image_filter(x: Any, weights: Any) -> Any:
    return np.einsum("hwij,ij->hw", windows(x, weights.shape), weights)


def by_tensordot(x: Any, weights: Any) -> Any:
    return np.tensordot(weights, windows(x, (3, 3), axis=(2, 3)), axes=((1, 2, 3), (1, 4, 5)))


def of_windows(x: Any, weights: Any) -> Any:
    return np.einsum("nchwij,ocij->nohw", windows(x, weights.shape[2:], axis=(2, 3)), weights)


def by_twos(x: Any, weights: Any) -> Any:
    return np.einsum("nchwij,ocij->nohw", windows(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2], weights)


def dilated(x: Any, weights: Any) -> Any:
    return np.einsum("nchwij,ocij->nohw", windows(x, (5, 7), axis=(2, 3))[..., ::2, ::3], weights)


def channels_last(x: Any, weights: Any) -> Any:
    return np.einsum("nhwcij,ijco->nhwo", windows(x, (3, 3), axis=(1, 2)), weights)


def along_a_line(x: Any, weights: Any) -> Any:
    return np.einsum("clk,ock->ol", windows(x, 5, axis=1), weights)


def cut_out(x: Any, weights: Any) -> Any:
    return convolution(x[:, ::-1, 2:, 3:], weights)


def with_margin(x: Any, weights: Any) -> Any:
    return convolution(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), weights)


def bias_and_relu(x: Any, weights: Any, bias: Any) -> Any:
    return np.maximum(convolution(x, weights) + bias[:, None, None], 0)


def twice(x: Any, weights: Any) -> Any:
    found = convolution(x, weights)
    return found, np.transpose(found, (0, 2, 3, 1)) * 2


def gradient_of_weights(x: Any, change: Any) -> Any:
    return np.einsum("nchwij,nohw->ocij", windows(x, (3, 3), axis=(2, 3)), change)


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "16 to 16 channels": (convolution, ((2, 16, 18, 34), (16, 16, 3, 3))),
    "odd": (convolution, ((2, 3, 17, 23), (5, 3, 3, 3))),
    "a pixel": (convolution, ((1, 3, 3, 3), (5, 3, 3, 3))),
    "one row": (convolution, ((1, 2, 3, 65), (3, 2, 3, 3))),
    "rows of fours": (of_windows, ((1, 3, 9, 32), (8, 3, 3, 5))),
    "part of rows of fours": (lambda x, y: convolution(x[..., 1:35], y), ((1, 3, 9, 36), (8, 3, 3, 3))),
    "weights first": (by_tensordot, ((2, 3, 17, 23), (5, 3, 3, 3))),
    "image filter": (image_filter, ((65, 67), (3, 3))),
    "large image filter": (image_filter, ((65, 67), (7, 7))),
    "by twos": (by_twos, ((2, 3, 31, 37), (7, 3, 3, 3))),
    "dilated": (dilated, ((1, 3, 21, 40), (6, 3, 3, 3))),
    "channels last": (channels_last, ((2, 17, 23, 6), (3, 3, 6, 10))),
    "along a line": (along_a_line, ((4, 257), (6, 4, 5))),
    "cut out": (cut_out, ((2, 3, 20, 28), (5, 3, 3, 3))),
    "with a margin": (with_margin, ((1, 3, 16, 24), (5, 3, 3, 3))),
    "bias and relu": (bias_and_relu, ((2, 16, 18, 34), (16, 16, 3, 3), (16,))),
    "twice": (twice, ((2, 3, 18, 24), (4, 3, 3, 3))),
    "gradient of weights": (gradient_of_weights, ((2, 3, 12, 14), (2, 4, 10, 12))),
}


def found_in(program: Program) -> Convolution | None:
    stored = frozenset(range(program.input_count))
    contracts = [number for number, node in enumerate(program.nodes) if isinstance(node.op, Contract)]
    (contract,) = contracts
    return convolution_of(program, contract, stored)


def recorded(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    return record(function, *(spec(*shape) for shape in shapes))


def arrays(shapes: tuple[tuple[int, ...], ...], dtype: str = "float32") -> list[HostArray]:
    """Small whole numbers: sums of their products are exact in every type and order."""
    random = np.random.default_rng(7)
    low = 0 if dtype.startswith("u") else -4
    return [random.integers(low, 5, shape).astype(dtype) for shape in shapes]


# -- what is one


@pytest.mark.parametrize("name", ["16 to 16 channels", "weights first", "bias and relu", "twice"])
def test_of_images(name: str) -> None:
    function, shapes = CASES[name]
    found = found_in(recorded(function, *shapes))
    assert found is not None
    (images, channels, high, wide), (out, *_) = shapes[:2]
    sizes = found.sizes
    assert (sizes.batch, sizes.channels, sizes.out_channels) == (images, channels, out)
    assert (sizes.height, sizes.width, sizes.window) == (high - 2, wide - 2, (3, 3))
    assert (sizes.stride, sizes.dilation) == ((1, 1), (1, 1))


def test_strides_and_dilations() -> None:
    found = found_in(recorded(by_twos, *CASES["by twos"][1]))
    assert found is not None
    assert (found.sizes.stride, found.sizes.dilation, found.sizes.height) == ((2, 2), (1, 1), 15)
    found = found_in(recorded(dilated, *CASES["dilated"][1]))
    assert found is not None
    assert (found.sizes.stride, found.sizes.dilation, found.sizes.window) == ((1, 1), (2, 3), (3, 3))


def test_missing_axes_count_as_one() -> None:
    found = found_in(recorded(image_filter, (65, 67), (7, 7)))
    assert found is not None
    assert (found.sizes.batch, found.sizes.channels, found.sizes.out_channels) == (1, 1, 1)
    found = found_in(recorded(along_a_line, (4, 257), (6, 4, 5)))
    assert found is not None
    assert (found.sizes.height, found.sizes.width, found.sizes.window) == (1, 253, (1, 5))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x @ y, ((40, 50), (50, 60))),
        (lambda x, y: x @ y, ((3, 40, 50), (3, 50, 60))),
        (lambda x, y: np.einsum("nchw,oc->nohw", x, y), ((2, 16, 9, 9), (8, 16))),
        # Every channel has weights of its own.
        (lambda x, y: np.einsum("nchwij,cij->nchw", windows(x, (3, 3), axis=(2, 3)), y), ((2, 16, 9, 9), (16, 3, 3))),
        # Windows that are changed before they are summed.
        (lambda x, y: np.einsum("hwij,oij->ohw", np.exp(windows(x, (3, 3))), y), ((20, 20), (9, 3, 3))),
        # Windows backwards.
        (lambda x, y: np.einsum("hwij,oij->ohw", windows(x, (3, 3))[:, :, ::-1, ::-1], y), ((20, 20), (9, 3, 3))),
        # Windows that have nothing in common are the rows of a matrix.
        (lambda x, y: x.reshape(80, 50) @ y, ((4000,), (50, 70))),
        (lambda x, y: np.einsum("hwij,oij->ohw", windows(x, (4, 4))[::4, ::4], y), ((20, 20), (9, 4, 4))),
    ],
)
def test_what_is_none(function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...]) -> None:
    program = recorded(function, *shapes)
    assert found_in(program) is None
    assert not any(
        isinstance(each, Direct) for choice in schedule(program, LEAST).choices for each in choice.candidates
    )


# -- kernels


@every_target
@pytest.mark.parametrize("name", ["16 to 16 channels", "odd", "bias and relu", "image filter", "along a line"])
def test_it_is_one_kernel_with_all_that_comes_after(target: Target, name: str) -> None:
    function, shapes = CASES[name]
    planned = plan(function, *(spec(*shape) for shape in shapes), target=target)
    assert len(planned.kernels) == 1, names(planned)
    assert isinstance(planned.choices[0].candidates[0], Direct)
    assert planned.kernels[0].flops > 0


def test_both_forms_are_candidates() -> None:
    planned = plan(convolution, spec(2, 16, 34, 34), spec(16, 16, 3, 3))
    (choice,) = planned.choices
    first, second = choice.candidates[:2]
    assert isinstance(first, Direct)
    assert isinstance(second, Tiling)
    product = plan(convolution, spec(2, 16, 34, 34), spec(16, 16, 3, 3), chosen={choice.name: second})
    assert product.kernels[0].source != planned.kernels[0].source
    assert product.kernels[0].flops == planned.kernels[0].flops


@pytest.mark.parametrize("name", ["channels last", "gradient of weights"])
def test_where_a_product_is_the_better_guess(name: str) -> None:
    function, shapes = CASES[name]
    planned = plan(function, *(spec(*shape) for shape in shapes))
    candidates = planned.choices[0].candidates
    assert isinstance(candidates[0], Tiling)
    assert any(isinstance(each, Direct) for each in candidates)


def test_rows_of_even_length_are_read_in_pairs() -> None:
    (kernel,) = plan(convolution, spec(1, 3, 18, 34), spec(8, 3, 3, 3)).kernels
    assert "input_a: array<vec2<f32>" in kernel.source
    (kernel,) = plan(lambda x, y: convolution(x[..., 1:35], y), spec(1, 3, 18, 36), spec(8, 3, 3, 3)).kernels
    assert "input_a: array<vec4<f32>" in kernel.source
    (kernel,) = plan(convolution, spec(1, 3, 18, 35), spec(8, 3, 3, 3)).kernels
    assert "input_a: array<f32" in kernel.source


def test_large_ones_can_be_cut_along_their_groups() -> None:
    (kernel,) = plan(convolution, spec(16, 16, 258, 258), spec(16, 16, 3, 3)).kernels
    assert "first_group" in kernel.numbers


@every_target
def test_a_product_may_leave_in_another_order(target: Target) -> None:
    """Neighbours are still stored side by side, so it is not a kernel of its own."""
    planned = plan(
        lambda x, y: np.einsum("bhqk,bhkd->bqhd", x, y), spec(2, 3, 65, 50), spec(2, 3, 50, 64), target=target
    )
    assert len(planned.kernels) == 1, names(planned)


# -- on devices


@pytest.fixture(scope="module", params=NAMES)
def opened(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


@pytest.mark.sampled(gate=16)
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_numpy(opened: Running, name: str) -> None:
    function, shapes = CASES[name]
    values = arrays(shapes)
    wanted = function(*values)
    for got, each in zip(
        opened.values(function, *values), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
    ):
        np.testing.assert_array_equal(got, each)


@pytest.mark.sampled(gate=4)
@pytest.mark.parametrize("dtype", ["float64", "int32", "uint32", "int64", "int8", "float16"])
def test_types(opened: Running, dtype: str) -> None:
    values = arrays(((2, 3, 12, 22), (5, 3, 3, 3)), dtype)
    (got,) = opened.values(convolution, *values)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, convolution(*values))


@pytest.mark.sampled(gate=6)
@pytest.mark.parametrize("name", ["odd", "by twos", "along a line"])
def test_either_form(opened: Running, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each form, chosen as tuning would."""
    function, shapes = CASES[name]
    values = arrays(shapes)
    program = record(function, *values)
    (choice,) = schedule(program, opened.session.target).choices
    direct = [each for each in choice.candidates if isinstance(each, Direct)]
    products = [each for each in choice.candidates if not isinstance(each, Direct)]
    wanted = function(*values)
    for candidate in (direct[-1], products[0]):
        monkeypatch.setattr(opened.session._tuner, "choose", lambda *_, each=candidate, **__: {choice.name: each})
        executable = opened.session._compile(program, ())
        (got,) = opened.engine.execute(executable, [opened.up(each) for each in values])
        np.testing.assert_array_equal(opened.down(got), wanted, err_msg=str(candidate))


def test_an_image_that_begins_inside_of_its_buffer(opened: Running) -> None:
    x, weights = arrays(((3, 4, 18, 24), (5, 4, 3, 3)))
    (later,) = opened.run(lambda x: x[1:], opened.up(x))
    (got,) = opened.run(convolution, later, opened.up(weights))
    np.testing.assert_array_equal(opened.down(got), convolution(x[1:], weights))
