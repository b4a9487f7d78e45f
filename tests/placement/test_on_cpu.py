"""`on="cpu"` is the engine that compiles for the processor, or NumPy where there is none. It is not chosen unasked."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.calls.offload import Offloaded
from anygpu.calls.options import options
from anygpu.engines import catalogue
from anygpu.engines.cpu.engine import _without_llvm
from anygpu.engines.disk_cache import version_of
from anygpu.hardware.device import Device, Unavailable
from anygpu.placement.planner import Planner
from anygpu.workers.device_arrays.registry import DeviceRegistry
from tests.engines.custom_programs import kernel_program


class WithoutGPUs(DeviceRegistry):
    """A registry that must not look for other devices than those of the processor."""

    def devices(self, *, low_priority: bool = False) -> list[Device]:
        raise AssertionError("the whole machine was looked at")


def chain(x: Any) -> Any:
    return np.sqrt(x * x + 1) - x.sum()


@pytest.fixture
def no_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where llvmlite has no wheel."""
    monkeypatch.setattr(catalogue, "version_of", lambda name: None if name == "llvmlite" else version_of(name))


def run(known: DeviceRegistry | None = None, **given: Any) -> ag.Receipt:
    planner = Planner(known=known or WithoutGPUs())
    function: Offloaded[..., Any] = Offloaded(chain, options(**given), lambda: planner)
    x = np.linspace(0, 1, 1000)
    result = function.run(x)
    np.testing.assert_allclose(result.value, chain(x), rtol=1e-15)
    assert result.value.dtype == np.float64
    return result.receipt


@pytest.mark.parametrize("name", ["cpu", "CPU"])
def test_a_call_that_names_it_runs_there_and_no_gpu_is_looked_for(name: str) -> None:
    receipt = run(on=name, fallback="raise")
    assert (receipt.device, receipt.kind, receipt.reason) == ("cpu", "cpu", "cpu is the only device allowed.")


def test_the_variable_names_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_DEVICE", "cpu")
    assert run().device == "cpu"
    assert ag.asarray([1.0]).device == "cpu"


@pytest.mark.usefixtures("no_llvmlite")
def test_without_llvmlite_it_is_numpy_and_the_receipt_says_why() -> None:
    receipt = run(on="cpu", fallback="raise")
    why = 'on="cpu" is NumPy here: llvmlite is not installed. pip install llvmlite installs it.'
    assert (receipt.device, receipt.reason) == ("numpy", why)
    assert DeviceRegistry().find("cpu").device == "numpy"
    assert run(on=["cpu", "opencl"]).device == "numpy"


class WithoutLLVM(WithoutGPUs):
    """A registry of a machine on which llvmlite is installed and cannot be loaded."""

    def of_engines(self, names: Collection[str], *, low_priority: bool = False) -> list[Device | Unavailable]:
        lost = _without_llvm(ImportError("libLLVM is damaged"))
        return [lost if each.id == "cpu" else each for each in super().of_engines(names, low_priority=low_priority)]


def test_a_damaged_llvmlite_is_numpy_and_the_receipt_says_how_to_mend_it() -> None:
    receipt = run(known=WithoutLLVM(), on="cpu")
    assert receipt.device == "numpy"
    assert receipt.reason.startswith('on="cpu" is NumPy here: LLVM cannot be loaded')
    assert receipt.reason.endswith("pip install --force-reinstall llvmlite")


def test_an_engine_that_is_left_out_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy")
    assert run(on="cpu").reason == 'on="cpu" is NumPy here: ANYGPU_ENGINES leaves out the engine cpu.'


def test_an_engine_that_is_left_out_compiles_no_calls_that_name_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy,opencl")
    assert not options().allows_native
    with pytest.raises(ag.InvalidOption, match="ANYGPU_ENGINES"):
        ag.offload(chain).prepare(np.ones(1000))
    for engines in ("", "numpy,cpu"):
        monkeypatch.setenv("ANYGPU_ENGINES", engines)
        assert options().allows_native


def test_calls_that_name_no_device_do_not_go_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "cpu")  # others take long to probe, and are no part of this
    planner = Planner(known=DeviceRegistry())
    function: Offloaded[..., Any] = Offloaded(chain, options(), lambda: planner)
    plan = function.explain(np.ones(1000))
    assert "cpu" not in [each.device for each in plan.candidates]
    refused = {each.device: each.sentence for each in plan.refused}
    assert refused["cpu"] == 'cpu is used where it is named: on="cpu".'
    # Nor does a quick device make it worth while to trace shorter functions.
    assert planner.floor > 1e-5


def test_a_plan_shows_the_loop_nests() -> None:
    function: Offloaded[..., Any] = Offloaded(chain, options(on="cpu"), lambda: Planner(known=WithoutGPUs()))
    plan = function.explain(np.ones(1000))
    assert plan.nests is not None
    assert "sqrt" in plan.nests
    assert plan.nests.splitlines()[0] in str(plan)


def test_of_an_opaque_task_it_is_the_librarys_own_device() -> None:
    assert options(engine="torch", on="cpu").preference.on == ("torch:cpu",)


def test_arrays_there_share_the_hosts_memory() -> None:
    array = ag.asarray(np.arange(6.0).reshape(2, 3), device="cpu") + 1
    assert array.device == "cpu"
    values = np.asarray(array)
    assert np.shares_memory(values, np.asarray(array))
    assert np.shares_memory(values, np.from_dlpack(array))
    np.testing.assert_array_equal(np.asarray(array[:, ::-1].T), (np.arange(6.0).reshape(2, 3) + 1)[:, ::-1].T)


def test_a_stream_runs_there() -> None:
    x, out = np.arange(100_000.0), np.empty(100_000)
    streamed = ag.stream(lambda each: each * 2 + 1, x, out, memory="1MB", on="cpu", fallback="raise")
    assert streamed.receipt.device == "cpu"
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_a_kernel_of_the_user_is_refused_with_the_reason() -> None:
    source = "__kernel void twice(__global const float* x, __global float* y) { y[get_global_id(0)] = 2; }"
    (x,) = inputs = [np.ones(64, np.float32)]
    program = kernel_program(source, inputs, [(64,)], (1, 1, 1))
    worker = DeviceRegistry().find("cpu").worker
    (lack,) = worker.supports(program)
    assert lack.reason == "cpu cannot run kernels in OpenCL C, and mine has no reference that can be traced"
    with pytest.raises(ag.Unsupported, match="written in opencl"):
        worker.run(program, [x])


def _specials(dtype: Any) -> Any:
    """Complex numbers of all pairs of special parts."""
    limits = np.finfo(dtype)
    parts = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan, limits.smallest_subnormal, limits.tiny, limits.max]
    return np.array([complex(a, b) for a in parts for b in parts]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, z: x / y,
        lambda x, y, z: 1 / x,
        lambda x, y, z: np.clip(x, y, z),
        lambda x, y, z: np.clip(x, -1 - 1j, 2),
        lambda x, y, z: np.nan_to_num(x),
        lambda x, y, z: np.nan_to_num(x, nan=1.5, posinf=2, neginf=-3),
        lambda x, y, z: x[:, None].sum(axis=1),
        lambda x, y, z: x[0].sum(),
    ],
)
def test_special_complex_numbers_are_numpys(function: Any, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    values = _specials(dtype)
    x, y = (each.ravel() for each in np.meshgrid(values, values))
    z = rng.permutation(y)
    with np.errstate(all="ignore"):
        expected = np.atleast_1d(function(x, y, z))
        got = np.atleast_1d(ag.run(function, x, y, z, on="cpu").value)
    assert got.dtype == expected.dtype
    parts, others = expected.view(expected.real.dtype), got.view(expected.real.dtype)
    np.testing.assert_array_equal(parts, others)
    known = ~np.isnan(parts)
    np.testing.assert_array_equal(np.signbit(parts[known]), np.signbit(others[known]))


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_sums_of_negative_zeros_are_numpys(dtype: Any, shape: tuple[int, ...]) -> None:
    x = -np.zeros(shape, dtype)
    axes: list[Any] = [None, (), *range(len(shape))]
    for axis in axes:
        for name in ("sum", "mean", "nansum"):
            function = partial(getattr(np, name), axis=axis)
            got = ag.run(lambda x: function(x), x, on="cpu", fallback="allow").value  # noqa: B023 - called at once
            assert np.asarray(got).tobytes() == np.asarray(function(x)).tobytes(), (name, axis)


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize(("length", "other"), [(5, 2), (2, 5), (7, 7), (100, 33), (1, 1), (3, 1)])
def test_vectors_that_are_moved_along_others_meet_only_what_is_there(
    name: str, mode: str, dtype: str, length: int, other: int
) -> None:
    rng = np.random.default_rng(0)

    def moved(x: Any, y: Any) -> Any:
        return getattr(np, name)(x, y, mode)

    for special in (1.0, np.inf, -np.inf, np.nan):
        x, y = rng.random(length).astype(dtype), rng.random(other).astype(dtype)
        y[rng.integers(other)] = special
        with np.errstate(all="ignore"):
            expected = moved(x, y)
            got = ag.run(moved, x, y, on="cpu").value
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=4e-3 if dtype == "float16" else 1e-5)


def unused(x: Any, y: Any) -> Any:
    np.exp(x)
    return x + y


def hidden_by_a_comparison(x: Any, y: Any) -> Any:
    return (np.sqrt(y) > 1) * x


def hidden_by_a_cast(x: Any, y: Any) -> Any:
    return (x * 1e300 * 1e300).astype(np.int32), y * 2


def quotient_of_whole_numbers(x: Any, y: Any) -> Any:
    return x.astype(np.int64) // y.astype(np.int64), x * y


@pytest.mark.parametrize("action", ["always", "error"])
@pytest.mark.parametrize("function", [unused, hidden_by_a_comparison, hidden_by_a_cast, quotient_of_whole_numbers])
def test_numpy_warns_there_too_of_what_no_result_shows(function: Any, action: Any) -> None:
    ours = ag.offload(on="cpu", fallback="raise")(function)
    for quiet, loud in (((1.0, 1.0), (1000.0, -1.0)), ((1.0, 1.0), (1000.0, 0.0))):
        for x, y in (quiet, quiet, loud, loud, quiet):
            arguments = np.full(40, x), np.full(40, y)
            said = []
            for each in (function, ours):
                with warnings.catch_warnings(record=True) as heard:
                    warnings.simplefilter(action)
                    try:
                        each(*arguments)
                    except RuntimeWarning as error:
                        said.append([str(error)])
                    else:
                        said.append([str(warning.message) for warning in heard])
            assert said[0] == said[1]
