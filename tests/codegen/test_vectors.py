"""Work in vectors gives what NumPy gives: where sizes are whole vectors, and where they are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.kernel import Schedule
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.engines.compiling_engine import CompilingEngine
from anygpu.engines.numpy import lowering
from anygpu.engines.opencl.engine import OpenCLEngine
from anygpu.engines.webgpu.engine import WebGPUEngine
from anygpu.hardware.device import Device

Function = Callable[..., Any]

WEBGPU = Target(dialect="wgsl", features=("f16", "f64", "i64", "subgroups"), subgroup_size=8)
EMULATED = Target(dialect="wgsl", features=WEBGPU.features, subgroup_size=8, emulated=True)
OPENCL = Target(dialect="opencl", features=("f64", "i64"), groups_per_dimension=None)
LENGTHS = (1, 2, 3, 4, 5, 63, 64, 65, 257, 1023, 1024, 1025, 16_387)


class Engine:
    def __init__(self, engine: CompilingEngine, device: Device) -> None:
        self.engine = engine
        self.device = device

    def run(self, function: Function, *arguments: HostArray) -> list[HostArray]:
        program = record(function, *arguments)
        executable = self.engine.compile(program, self.device)
        buffers = [self.engine.upload(each, self.device) for each in arguments]
        return [self.engine.download(each) for each in self.engine.execute(executable, buffers)]

    def agrees(self, function: Function, *arguments: HostArray, close: float = 2e-6) -> None:
        expected = lowering.run(record(function, *arguments), list(arguments))
        for ours, theirs in zip(self.run(function, *arguments), expected, strict=True):
            assert ours.dtype == theirs.dtype
            if theirs.dtype.kind in "biu":
                np.testing.assert_array_equal(ours, theirs)
            else:
                np.testing.assert_allclose(ours, theirs, rtol=close, atol=close * _greatest(theirs))


def _greatest(values: HostArray) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


@pytest.fixture(scope="module", params=["webgpu", "opencl"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = WebGPUEngine() if request.param == "webgpu" else OpenCLEngine()
    device = next(each for each in made.discover() if isinstance(each, Device))
    yield Engine(made, device)
    made.close()


def normal(*shape: int, dtype: str = "float32", seed: int = 0) -> HostArray:
    values = np.random.default_rng(seed).normal(size=shape) * 3
    return values.astype(dtype) if dtype != "bool" else values > 0


def planned(target: Target, function: Function, *arguments: HostArray) -> Schedule:
    return schedule(record(function, *arguments), target)


def softmax(x: Any) -> Any:
    shares = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return shares / np.sum(shares, axis=-1, keepdims=True)


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    distance = x - np.mean(x, axis=-1, keepdims=True)
    return distance / np.sqrt(np.mean(distance * distance, axis=-1, keepdims=True) + 1e-5) * scale + shift


class TestMaps:
    @pytest.mark.sampled(gate=5)
    @pytest.mark.parametrize("length", LENGTHS)
    def test_every_length(self, engine: Engine, length: int) -> None:
        engine.agrees(lambda x, y: (np.exp(x) * y - 1, x > y), normal(length), normal(length, seed=1))

    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("length", [4096, 8195])
    def test_several_vectors_for_each_invocation(self, engine: Engine, length: int) -> None:
        engine.agrees(lambda x, y: (np.tanh(x) * y - 1, x > y), normal(length), normal(length, seed=1))
        wide, whole = normal(length, dtype="float64"), normal(length, dtype="int64", seed=1)
        engine.agrees(lambda x, y: (np.exp(x) + y, y * 3), wide, whole)

    def test_vectors_of_a_processor_are_written_out_and_those_of_a_card_are_one(self) -> None:
        (kernel,) = planned(EMULATED, lambda x: x * x + 1, normal(1 << 16)).kernels
        assert kernel.source.count("input_a[block * 4") == 4
        assert "for (" not in kernel.source
        assert kernel.groups * kernel.group_size * 16 == 1 << 16
        (kernel,) = planned(WEBGPU, lambda x: x * x + 1, normal(1 << 16)).kernels
        assert kernel.groups * kernel.group_size * 4 == 1 << 16

    def test_long_maps_are_not_written_out(self) -> None:
        def long(x: Any) -> Any:
            for number in range(40):
                x = np.floor(x * (number + 0.5))
            return x

        (kernel,) = planned(EMULATED, long, normal(1 << 16)).kernels
        assert kernel.source.count("for (") == 1

    @pytest.mark.sampled(gate=6)
    @pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "float64", "float16", "int8", "uint8", "bool"])
    def test_every_type(self, engine: Engine, dtype: str) -> None:
        x, y = normal(515, dtype=dtype), normal(515, dtype=dtype, seed=1)
        engine.agrees(lambda x, y: (np.maximum(x, y), x == y, np.where(x < y, x, y)), x, y)

    def test_types_that_meet(self, engine: Engine) -> None:
        engine.agrees(
            lambda a, b, c: (a + b, np.where(c, a, b), a.astype("float64") * 2, c & (b > 0)),
            normal(260), normal(260, dtype="int32"), normal(260, dtype="bool"),
        )  # fmt: skip

    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("columns", [4, 6, 16, 64, 65])
    def test_a_row_beside_a_matrix(self, engine: Engine, columns: int) -> None:
        engine.agrees(lambda x, row, column: x * row + column, normal(37, columns), normal(columns), normal(37, 1))

    @pytest.mark.parametrize("shift", [1, 2, 3, 4, 5])
    def test_shifted_neighbours(self, engine: Engine, shift: int) -> None:
        engine.agrees(lambda x: x[shift:] - x[:-shift], normal(1029))

    def test_views(self, engine: Engine) -> None:
        engine.agrees(lambda x: (np.flip(x, 0) + 1, x[::2] * 2, np.roll(x, 3), np.pad(x, 5) - 1), normal(300))

    def test_an_input_that_begins_inside_of_its_memory(self, engine: Engine) -> None:
        whole = normal(1040)
        array = engine.engine.upload(whole, engine.device)
        inner = engine.engine.execute(engine.engine.compile(record(lambda x: x[3:1027], whole), engine.device), [array])
        program = record(lambda x: x * x + 1, whole[3:1027])
        (result,) = engine.engine.execute(engine.engine.compile(program, engine.device), inner)
        np.testing.assert_array_equal(engine.engine.download(result), whole[3:1027] * whole[3:1027] + 1)

    def test_complex_numbers(self, engine: Engine) -> None:
        x = (normal(130) + 1j * normal(130, seed=1)).astype("complex64")
        engine.agrees(lambda x: x * np.conj(x) + 1, x)


class TestGather:
    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("columns", [4, 16, 64, 65])
    def test_rows(self, engine: Engine, columns: int) -> None:
        wanted = np.random.default_rng(0).integers(-50, 50, 70).astype("int32")
        engine.agrees(lambda table, rows: np.take(table, rows, axis=0), normal(50, columns), wanted)

    @pytest.mark.parametrize("wrong", [50, -51, 1 << 31, -(1 << 40)])
    def test_a_row_outside_is_reported_and_no_other_is_wrong(self, engine: Engine, wrong: int) -> None:
        wanted = np.zeros(70, "int64")
        wanted[33] = wrong
        with pytest.raises(IndexError, match="is out of bounds for an axis with size 50"):
            engine.run(lambda table, rows: np.take(table, rows, axis=0) * 2, normal(50, 64), wanted)

    def test_rows_of_rows(self, engine: Engine) -> None:
        first, second = (np.random.default_rng(seed).integers(-50, 50, 50).astype("int32") for seed in (0, 1))
        engine.agrees(lambda table, i, j: np.take(np.take(table, i, axis=0), j, axis=0), normal(50, 64), first, second)
        engine.agrees(lambda table, i: np.take(table, i, axis=1).sum(axis=1), normal(9, 50, 16), first)

    def test_single_elements(self, engine: Engine) -> None:
        wanted = np.random.default_rng(0).integers(0, 50, 1025).astype("int32")
        engine.agrees(lambda table, at: np.take(table, at) * 2, normal(50), wanted)

    def test_what_is_outside_is_reported(self, engine: Engine) -> None:
        wanted = np.zeros(260, "int32")
        wanted[130] = 77
        with pytest.raises(IndexError, match="77 is out of bounds"):
            engine.run(lambda table, at: np.take(table, at), normal(50), wanted)


class TestTurned:
    @pytest.mark.sampled(gate=3)
    @pytest.mark.parametrize("shape", [(64, 64), (128, 32), (65, 64), (66, 68), (257, 31), (16, 1024)])
    def test_a_transposed_copy(self, engine: Engine, shape: tuple[int, int]) -> None:
        engine.agrees(lambda x: np.copy(x.T), normal(*shape))

    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("axes", [(0, 2, 1), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
    def test_more_axes(self, engine: Engine, axes: tuple[int, int, int]) -> None:
        engine.agrees(lambda x: np.transpose(x, axes) * 2, normal(16, 32, 64))

    def test_beside_what_is_not_turned(self, engine: Engine) -> None:
        engine.agrees(lambda x, y, row: x.T + y * row, normal(96, 64), normal(64, 96), normal(96))

    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "float16"])
    def test_other_types(self, engine: Engine, dtype: str) -> None:
        engine.agrees(lambda x: np.copy(x.T), normal(64, 96, dtype=dtype))


class TestRows:
    @pytest.mark.sampled(gate=5)
    @pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 256, 1025])
    def test_sums(self, engine: Engine, length: int) -> None:
        engine.agrees(lambda x: (np.sum(x, axis=0), np.max(x, axis=0)), normal(length, 36), close=1e-5)
        engine.agrees(lambda x: (np.sum(x, axis=1), np.max(x, axis=1)), normal(37, length), close=1e-5)

    @pytest.mark.sampled(gate=3)
    @pytest.mark.parametrize("shape", [(4100,), (70_001,), (1 << 17,), (300, 1001)])
    def test_sums_over_all(self, engine: Engine, shape: tuple[int, ...]) -> None:
        engine.agrees(lambda x: (np.sum(x), np.min(x)), normal(*shape), close=1e-5)

    @pytest.mark.sampled(gate=3)
    @pytest.mark.parametrize("columns", [1, 12, 64, 130, 260])
    def test_many_rows_are_summed_in_two_stages(self, engine: Engine, columns: int) -> None:
        engine.agrees(lambda x: np.sum(x, axis=0), normal(3001, columns), close=1e-5)

    @pytest.mark.sampled(gate=7)
    @pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "bool", "int8", "complex64"])
    def test_other_types(self, engine: Engine, dtype: str) -> None:
        x = normal(40, 264, dtype=dtype)
        engine.agrees(lambda x: (np.sum(x, axis=1), np.sum(x, axis=0), np.prod(x[:, :4], axis=1)), x, close=1e-5)
        engine.agrees(lambda x: (np.any(x, axis=1), np.all(x, axis=0)), x)

    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("shape", [(40, 264), (264, 40), (3, 4096)])
    def test_positions_of_extremes(self, engine: Engine, shape: tuple[int, int]) -> None:
        engine.agrees(lambda x: (np.argmax(x, axis=0), np.argmin(x, axis=1)), np.round(normal(*shape)))

    @pytest.mark.sampled(gate=2)
    @pytest.mark.parametrize("length", [64, 130, 1000, 1024, 1025])
    def test_softmax(self, engine: Engine, length: int) -> None:
        engine.agrees(softmax, normal(33, length), close=5e-6)

    @pytest.mark.sampled(gate=3)
    @pytest.mark.parametrize("length", [96, 130, 1024])
    def test_layer_norm(self, engine: Engine, length: int) -> None:
        for rows in (33, 4096):
            engine.agrees(layer_norm, normal(rows, length), normal(length), normal(length, seed=1), close=2e-5)

    @pytest.mark.parametrize("place", [0, 777])
    def test_not_a_number_wins(self, engine: Engine, place: int) -> None:
        x = normal(9, 1024)
        x[4, place] = np.nan
        engine.agrees(lambda x: (np.max(x, axis=1), np.min(x, axis=1), np.max(x, axis=0), np.max(x)), x)
        x[4, (place + 1) % 1024] = -np.nan
        engine.agrees(lambda x: np.max(x, axis=1), x)

    def test_infinities(self, engine: Engine) -> None:
        x = np.full((9, 256), -np.inf, "float32")
        x[3, 7] = np.inf
        engine.agrees(lambda x: (np.max(x, axis=1), np.min(x, axis=1)), x)

    def test_few_long_rows_and_many_short_ones(self, engine: Engine) -> None:
        engine.agrees(softmax, normal(2, 30_000), close=5e-6)
        engine.agrees(softmax, normal(5000, 8), close=5e-6)
        engine.agrees(lambda x: np.sum(x, axis=(0, 2)), normal(12, 130, 64), close=1e-5)


class TestText:
    def test_a_map_in_vectors(self) -> None:
        (kernel,) = planned(WEBGPU, lambda x: x * 2, normal(1024)).kernels
        assert kernel.source.count("array<vec4<f32>, 256>") == 2
        assert "% 4" not in kernel.source
        (kernel,) = planned(OPENCL, lambda x: x * 2, normal(1024)).kernels
        assert "vload4(" in kernel.source

    def test_the_last_elements_one_by_one(self) -> None:
        (kernel,) = planned(WEBGPU, lambda x: x * 2, normal(1027)).kernels
        assert "array<vec4<f32>, 257>" in kernel.source
        assert "for (var i = 1024; i < 1027; i += 1)" in kernel.source

    def test_a_buffer_whose_beginning_is_not_known_stays_single(self) -> None:
        program = record(lambda x: x * 2, normal(1024))
        (kernel,) = schedule(program, WEBGPU, offsets=(True,)).kernels
        assert re.search(r"read> \w+: array<f32>;", kernel.source)
        assert "read_write> t3: array<vec4<f32>, 256>" in kernel.source or "vec4<f32>, 256>" in kernel.source

    def test_rows_that_do_not_begin_at_vectors_stay_single(self) -> None:
        (kernel,) = planned(WEBGPU, softmax, normal(64, 130)).kernels
        assert "vec4" not in kernel.source

    def test_a_short_row_stays_in_registers(self) -> None:
        (kernel,) = planned(WEBGPU, softmax, normal(4096, 1024)).kernels
        body = kernel.source.split("@compute")[1]
        assert kernel.group_size == 8
        assert len(re.findall(r"= input_a\[", body)) == 32
        assert len(re.findall(r"^ +\w+\[.*\] = ", body, re.MULTILINE)) == 32
        assert "workgroupBarrier" not in body

    def test_without_subgroups_there_are_barriers(self) -> None:
        bare = Target(dialect="wgsl")
        (kernel,) = planned(bare, softmax, normal(4096, 1024)).kernels
        assert "subgroup" not in kernel.source
        assert "workgroupBarrier" in kernel.source

    def test_four_sums_side_by_side(self) -> None:
        (kernel,) = planned(WEBGPU, lambda x: np.sum(x, axis=1), normal(4096, 4096)).kernels
        assert re.search(r"var sum_\d+_strip_3 = vec4<f32>", kernel.source)

    def test_a_transposed_copy_reads_and_writes_whole_vectors(self) -> None:
        (kernel,) = planned(WEBGPU, lambda x: np.copy(x.T), normal(256, 256)).kernels
        assert kernel.source.count("array<vec4<f32>, 16384>") == 2
        (kernel,) = planned(OPENCL, lambda x: np.copy(x.T), normal(256, 256)).kernels
        assert "for (int turn = 0; turn < 4; turn += 1)" in kernel.source
