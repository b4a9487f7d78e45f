"""What is measured: functions as a user of NumPy writes them, and what they are called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from anygpu.base.typing import HostArray

GELU_SLOPE, GELU_CUBE = 0.7978845608, 0.044715


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One function at one size. The numbers of its size are what the hand-written kernels are compiled with."""

    name: str
    kind: str
    #: Takes NumPy's arrays or ours.
    function: Callable[..., Any]
    #: What the hand-written kernels have to know.
    size: Mapping[str, int]
    #: Its arguments.
    make: Callable[[], tuple[HostArray, ...]]
    #: Multiplications and additions, where those are what takes the time.
    flops: float = 0.0
    #: How much faster than NumPy it has to be on a processor, at least.
    numpy_factor: float | None = None
    #: How far results may differ, relative to the greatest number in them: sums are taken in another order.
    tolerance: float = 2e-5
    #: Only there so that a fast device takes long enough to be compared.
    large: bool = False

    def __str__(self) -> str:
        return self.name


def _normal(*shape: int, seed: int = 0) -> HostArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def chain(x: Any) -> Any:
    return 1 / (1 + np.exp(-(x * x / 2 + np.tanh(x) / 4 - 1)))


def softmax(x: Any) -> Any:
    shares = np.exp(x - np.max(x, axis=1, keepdims=True))
    return shares / np.sum(shares, axis=1, keepdims=True)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    distance = x - np.mean(x, axis=1, keepdims=True)
    variance = np.mean(distance * distance, axis=1, keepdims=True)
    return distance / np.sqrt(variance + 1e-5) * scale + shift


def matmul_bias_gelu(a: Any, b: Any, bias: Any) -> Any:
    v = a @ b + bias
    return 0.5 * v * (1 + np.tanh(GELU_SLOPE * (v + GELU_CUBE * v * v * v)))


def convolution(x: Any, weights: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return np.einsum("bihwyx,oiyx->bohw", windows, weights, optimize=True)


def _chain(count: int, *, large: bool = False) -> Workload:
    return Workload(
        name=f"chain of 8 on {count >> 20}M",
        kind="chain",
        function=chain,
        size={"COUNT": count},
        make=lambda: (_normal(count),),
        numpy_factor=2.0,
        large=large,
    )


def _sums(side: int, *, large: bool = False) -> list[Workload]:
    size = {"ROWS": side, "COLUMNS": side}

    def make() -> tuple[HostArray, ...]:
        # Not around zero: what is left of a sum that cancels is only rounding.
        return (np.random.default_rng(0).random((side, side), np.float32),)

    axes: dict[str, Callable[[Any], Any]] = {
        "sum_all": np.sum,
        "sum_last": lambda x: np.sum(x, axis=1),
        "sum_first": lambda x: np.sum(x, axis=0),
    }
    names = {"sum_all": "sum over all", "sum_last": "sum over the last axis", "sum_first": "sum over the first axis"}
    return [
        Workload(name=f"{names[kind]} of {side}²", kind=kind, function=function, size=size, make=make, large=large)
        for kind, function in axes.items()
    ]


def _softmax(rows: int, columns: int, *, large: bool = False) -> Workload:
    return Workload(
        name=f"softmax of {rows}×{columns}",
        kind="softmax",
        function=softmax,
        size={"ROWS": rows, "COLUMNS": columns},
        make=lambda: (_normal(rows, columns),),
        numpy_factor=1.0,
        large=large,
    )


def _layer_norm(rows: int, columns: int, *, large: bool = False) -> Workload:
    return Workload(
        name=f"layer norm of {rows}×{columns}",
        kind="layer_norm",
        function=layer_norm,
        size={"ROWS": rows, "COLUMNS": columns},
        make=lambda: (_normal(rows, columns), _normal(columns, seed=1), _normal(columns, seed=2)),
        numpy_factor=1.0,
        large=large,
    )


def _matmul(rows: int, inner: int, columns: int, *, large: bool = False) -> Workload:
    square = rows == inner == columns
    return Workload(
        name=f"matmul {rows}" if square else f"matmul {rows}×{inner}×{columns}",
        kind="matmul",
        function=lambda a, b: a @ b,
        size={"ROWS": rows, "INNER": inner, "COLUMNS": columns},
        make=lambda: (_normal(rows, inner), _normal(inner, columns, seed=1)),
        flops=2.0 * rows * inner * columns,
        large=large,
    )


def _matmul_bias_gelu(side: int) -> Workload:
    return Workload(
        name=f"matmul + bias + gelu {side}",
        kind="matmul_bias_gelu",
        function=matmul_bias_gelu,
        size={"ROWS": side, "INNER": side, "COLUMNS": side},
        make=lambda: (_normal(side, side), _normal(side, side, seed=1), _normal(side, seed=2)),
        flops=2.0 * side**3,
    )


def _convolution(images: int, channels: int, side: int) -> Workload:
    return Workload(
        name=f"3×3 convolution, {images}×{channels}×{side}²",
        kind="convolution",
        function=convolution,
        size={"IMAGES": images, "IN_CHANNELS": channels, "OUT_CHANNELS": channels, "HEIGHT": side, "WIDTH": side},
        make=lambda: (_normal(images, channels, side + 2, side + 2), _normal(channels, channels, 3, 3, seed=1)),
        flops=2.0 * images * channels * channels * 9 * side * side,
    )


def _transpose(side: int) -> Workload:
    return Workload(
        name=f"transposed copy of {side}²",
        kind="transpose",
        function=lambda x: np.copy(x.T),
        size={"ROWS": side, "COLUMNS": side},
        make=lambda: (_normal(side, side),),
    )


def _gather(table: int, columns: int, count: int, *, large: bool = False) -> Workload:
    return Workload(
        name=f"gather of {count} rows of {columns}",
        kind="gather",
        function=lambda rows, indices: np.take(rows, indices, axis=0),
        size={"TABLE": table, "COLUMNS": columns, "COUNT": count},
        make=lambda: (
            _normal(table, columns),
            np.random.default_rng(1).integers(0, table, count, np.int32),
        ),
        large=large,
    )


WORKLOADS: list[Workload] = [
    _chain(4 << 20),
    *_sums(4096),
    _softmax(4096, 1024),
    _layer_norm(4096, 1024),
    _matmul(128, 128, 128),
    _matmul(512, 512, 512),
    _matmul(1024, 1024, 1024),
    _matmul(65536, 64, 32),
    _matmul_bias_gelu(1024),
    _convolution(4, 16, 256),
    _transpose(4096),
    _gather(100_000, 64, 65_536),
    # A processor through OpenCL does the ones above in a few milliseconds: again, so that it takes 5 or more.
    _chain(16 << 20, large=True),
    *_sums(8192, large=True),
    _softmax(32768, 1024, large=True),
    _layer_norm(32768, 1024, large=True),
    _matmul(524288, 64, 32, large=True),
    _gather(100_000, 64, 524_288, large=True),
]
