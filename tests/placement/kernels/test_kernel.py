"""`ag.Kernel` on devices that speak its language: made, called, placed, and checked by its reference."""

from __future__ import annotations

import inspect
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu.placement import planner as planning
from anygpu.placement.kernels.first_use import trials
from anygpu.program.ops.custom import Custom, Language

ENGINE: dict[Language, str] = {"wgsl": "webgpu", "opencl": "opencl"}
LANGUAGES: tuple[Language, ...] = ("wgsl", "opencl")

SCALE: dict[Language, str] = {
    "wgsl": """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> alpha: f32;

@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&a)) {
        y[id.x] = alpha * a[id.x];
    }
}
""",
    "opencl": """
__kernel void scale(__global const float *a, __global float *y, float alpha) {
    int i = get_global_id(0);
    y[i] = alpha * a[i];
}
""",
}
BOTH: dict[Language, str] = {
    "wgsl": """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> total: array<f32>;
@group(0) @binding(3) var<storage, read_write> larger: array<i32>;

@compute @workgroup_size(8, 8)
fn both(@builtin(global_invocation_id) id: vec3<u32>) {
    let width = arrayLength(&b);
    let i = id.y * width + id.x;
    if (id.x < width && i < arrayLength(&a)) {
        total[i] = a[i] + b[id.x];
        larger[i] = i32(a[i] > b[id.x]);
    }
}
""",
    "opencl": """
__kernel __attribute__((reqd_work_group_size(8, 8, 1)))
void both(__global const float *a, __global const float *b, __global float *total, __global int *larger) {
    int width = 5, x = get_global_id(0), i = get_global_id(1) * width + x;
    if (x < width) {
        total[i] = a[i] + b[x];
        larger[i] = a[i] > b[x];
    }
}
""",
}
COUNT: dict[Language, str] = {
    "wgsl": """
override STEP: i32 = 1;
@group(0) @binding(0) var<storage, read_write> x: array<i32>;

@compute @workgroup_size(64)
fn count(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&x)) { x[id.x] += STEP; }
}
""",
    "opencl": """
#ifndef STEP
#define STEP 1
#endif
__kernel void count(__global int *x) { x[get_global_id(0)] += STEP; }
""",
}
READER: dict[Language, str] = {
    "wgsl": """
@group(0) @binding(0) var<storage, read> at: array<i32>;
@group(0) @binding(1) var<storage, read> a: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@compute @workgroup_size(64)
fn look(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&at)) { y[id.x] = a[at[id.x]]; }
}
""",
    "opencl": """
__kernel void look(__global const int *at, __global const int *a, __global int *y) {
    int i = get_global_id(0);
    y[i] = a[at[i]];
}
""",
}


def scaled(a: Any, alpha: float) -> Any:
    """What it means."""
    return a * alpha


def both(a: Any, b: Any) -> Any:
    return a + b, (a > b).astype(np.int32)


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> Language:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Each test checks its kernels anew, and no library is loaded that it does not need."""
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy,webgpu,opencl")
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def nothing_stays() -> Iterator[None]:
    """A planner looks at the machine once: other files must not get the one that saw the engines of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_default", None)
        yield
        own = planning._default
        if own is not None:
            assert own.settle(60)
            own.close()
    trials.close()


A = np.linspace(-3, 3, 1000, dtype=np.float32)


def test_a_kernel_knows_what_it_takes(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language], scaled, name="my scale")
    spoken = {"wgsl": "WGSL", "opencl": "OpenCL C"}[language]
    call = "my scale(a: array of float32, alpha: float32) -> y: array of float32"
    assert repr(kernel) == f"<Kernel {call}, in {spoken}>"
    assert (kernel.name, kernel.language, kernel.entry) == ("my scale", language, "scale")
    assert kernel.source == SCALE[language]
    assert kernel.__doc__ == "What it means."
    assert [each.role for each in kernel.parameters] == ["input", "output"]


def test_numpy_in_and_numpy_out(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language], scaled)
    found = kernel(A, alpha=2.5)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, A * np.float32(2.5), rtol=1e-6)
    np.testing.assert_allclose(kernel(A.reshape(10, 100), 0.5), A.reshape(10, 100) / 2, rtol=1e-6)


def test_arrays_stay_lazy_and_on_their_device(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language], scaled)
    array = ag.asarray(A, device=ENGINE[language])
    found = kernel(array * 2, alpha=2.0) + 1
    assert isinstance(found, ag.Array)
    assert found.device.startswith(ENGINE[language])
    assert any(isinstance(node.op, Custom) for node in found.program.nodes)
    np.testing.assert_allclose(np.asarray(found), A * 4 + 1, rtol=1e-5)


@pytest.mark.parametrize("device", ["numpy", "cpu", "torch", "jax"])
def test_elsewhere_it_is_its_reference(language: Language, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANYGPU_ENGINES")
    kernel = ag.Kernel(SCALE[language], scaled)
    found = kernel(ag.asarray(A, device=device), alpha=3.0)
    assert found.device.startswith(device)
    np.testing.assert_allclose(np.asarray(found), A * 3, rtol=1e-6)


def test_several_results_and_two_dimensions(language: Language) -> None:
    kernel = ag.Kernel(BOTH[language], both)
    a, b = A.reshape(200, 5), A[:5].copy()
    total, larger = kernel(ag.asarray(a, device=ENGINE[language]), b)
    np.testing.assert_array_equal(np.asarray(total), a + b)
    np.testing.assert_array_equal(np.asarray(larger), a > b)
    assert larger.dtype == np.int32


def test_an_update_changes_a_copy(language: Language) -> None:
    kernel = ag.Kernel(COUNT[language], lambda x: x + 5, updates=["x"], constants={"STEP": 5})
    array = ag.arange(100, dtype=np.int32, device=ENGINE[language])
    found = kernel(array)
    np.testing.assert_array_equal(np.asarray(found), np.arange(100) + 5)
    np.testing.assert_array_equal(np.asarray(array), np.arange(100))
    np.testing.assert_array_equal(np.asarray(kernel(kernel(array))), np.arange(100) + 10)


def test_inside_an_offloaded_function_it_is_a_node(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language], scaled)

    @ag.offload(on=ENGINE[language])
    def twice(x: Any, alpha: float) -> Any:
        return kernel(kernel(x, alpha), alpha) - x

    np.testing.assert_allclose(twice(A, 2.0), A * 3, rtol=1e-5)
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.device.startswith(ENGINE[language])
    assert not receipt.host_operations


def test_inside_a_function_that_runs_on_numpy_it_is_its_reference(language: Language) -> None:
    calls = []

    def reference(a: Any, alpha: float) -> Any:
        calls.append(type(a))
        return a * alpha

    kernel = ag.Kernel(SCALE[language], reference)
    kernel.check(A, 2.0)
    function = ag.offload(lambda x: kernel(x, 2.0) + 1)
    calls.clear()
    np.testing.assert_allclose(function(A), A * 2 + 1, rtol=1e-6)
    assert np.ndarray in calls
    receipt = ag.last_receipt()
    assert receipt is not None
    assert receipt.device == "numpy"


def _receipt_of(kernel: ag.Kernel, language: Language) -> ag.Receipt:
    """That of a call with NumPy's arrays, wherever it comes from."""
    np.testing.assert_allclose(kernel(A, 2.0), A * 2, rtol=1e-6)
    receipt = ag.last_receipt()
    assert receipt is not None
    return receipt


def test_a_done_callback_is_no_part_of_the_task(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_DEVICE", ENGINE[language])
    kernel = ag.Kernel(SCALE[language], scaled)
    receipts: list[ag.Receipt] = []
    begin, done = threading.Event(), threading.Event()

    def callback(_: Any) -> None:
        try:
            receipts.append(_receipt_of(kernel, language))
        finally:
            done.set()

    def task(x: Any) -> Any:
        begin.wait(120)
        return x + 1

    future = ag.submit(task, A, on="numpy")
    future.add_done_callback(callback)
    begin.set()
    assert done.wait(120)
    assert [receipt.task for receipt in receipts] == ["scale"]
    assert receipts[0].device.startswith(ENGINE[language])


@pytest.mark.parametrize("per_chunk", [False, True])
def test_a_sink_of_a_stream_is_no_part_of_the_stream(
    language: Language, per_chunk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYGPU_DEVICE", ENGINE[language])
    kernel = ag.Kernel(SCALE[language], scaled)
    receipts: list[ag.Receipt] = []

    def sink(chunk: Any, start: int, stop: int) -> None:
        receipts.append(_receipt_of(kernel, language))

    ag.stream(lambda x: x + 1, A, sink=sink, per_chunk=per_chunk, on="numpy")
    assert {receipt.task for receipt in receipts} == {"scale"}
    assert receipts[0].device.startswith(ENGINE[language])


def test_inside_a_stream_that_runs_on_numpy_it_is_its_reference(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language], scaled)
    kernel.check(A, 2.0)
    with ag.collect_receipts() as receipts:
        streamed = ag.stream(lambda x: kernel(x, 2.0) + 1, A, per_chunk=True, on="numpy")
    np.testing.assert_allclose(streamed.value, A * 2 + 1, rtol=1e-6)
    assert "scale" not in {receipt.task for receipt in receipts}


def test_without_a_reference_only_its_own_devices_run_it(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language])
    np.testing.assert_allclose(kernel(A, 2.0), A * 2, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(kernel(ag.asarray(A, device=ENGINE[language]), 2.0)), A * 2, rtol=1e-6)
    assert not kernel.check(A, 2.0).compared
    with pytest.raises(ag.Unsupported, match="scale"):
        np.asarray(kernel(ag.asarray(A, device="numpy"), 2.0))


def test_a_reference_that_numpy_alone_can_compute_is_for_checking(language: Language) -> None:
    def reference(a: Any, alpha: float) -> Any:
        return np.array([alpha * float(each) for each in a], np.float32)

    kernel = ag.Kernel(SCALE[language], reference)
    np.testing.assert_allclose(kernel(A, 2.0), A * 2, rtol=1e-6)
    assert kernel.check(A, 2.0).compared
    np.testing.assert_allclose(np.asarray(kernel(ag.asarray(A, device=ENGINE[language]), 2.0)), A * 2, rtol=1e-6)
    with pytest.raises(ag.Unsupported, match="reference"):
        np.asarray(kernel(ag.asarray(A, device="numpy"), 2.0))


def test_a_wrong_kernel_is_caught_at_its_first_use(language: Language) -> None:
    wrong = SCALE[language].replace("alpha * a", "alpha + a")
    kernel = ag.Kernel(wrong, scaled)
    a = np.full((4, 8), 2, np.float32)  # for which 2 + 2 is 2 * 2
    a[1, 3] = 5
    a[2, 0] = 6
    with pytest.raises(
        ag.errors.WrongKernel, match=r"y\[1, 3\], the first of 2 places, is 7.0, and the reference has 10.0"
    ) as e:
        kernel(ag.asarray(a, device=ENGINE[language]), 2.0)
    assert e.value.position == (1, 3)
    with pytest.raises(ag.errors.WrongKernel):
        kernel(a, 2.0)
    function = ag.offload(lambda x: kernel(x, 2.0))
    with pytest.raises(ag.errors.WrongKernel):
        function(a)


def test_indices_outside_are_found_where_the_reference_tells() -> None:
    kernel = ag.Kernel(READER["wgsl"], lambda at, a: a[at], results="at")
    at, a = np.arange(64, dtype=np.int32), np.arange(100, 200, dtype=np.int32)
    wild = at.copy()
    wild[5] = -3
    with pytest.raises(ag.errors.WrongKernel, match=r"y\[5\]"):
        kernel(wild, a)
    wild[5] = 100
    with pytest.raises(IndexError):
        ag.Kernel(READER["wgsl"], lambda at, a: a[at] + 0, results="at")(wild, a)
    checked = ag.Kernel(READER["wgsl"], lambda at, a: a[at] * 1, results="at")
    np.testing.assert_array_equal(checked(at, a), at + 100)
    device = [ag.asarray(each, device="webgpu") for each in (wild, a)]
    assert np.asarray(checked(*device))[5] in {0, *a.tolist()}
    np.testing.assert_array_equal(np.asarray(device[1]), a)


def test_a_crash_in_the_first_run_is_survived() -> None:
    kernel = ag.Kernel(SCALE["opencl"].replace("y[i] =", "y[i + (1L << 40)] ="), scaled)
    with pytest.raises(ag.errors.InvalidKernel, match="killed the process"):
        kernel(A, 2.0)
    np.testing.assert_allclose(ag.Kernel(SCALE["opencl"], scaled)(A, 2.0), A * 2, rtol=1e-6)


def test_arguments_of_any_order_in_opencl() -> None:
    kernel = ag.Kernel(
        """
        __kernel void mixed(double d, __global const float4 *a, uint n, __global float4 *y, long l, float f) {
            int i = get_global_id(0);
            if (i < n) y[i] = a[i] * f + (float)d + l;
        }
        """,
        lambda a, d, l, f: a * np.float32(f) + np.float32(d) + np.float32(l),  # noqa: E741
    )
    a = np.arange(64, dtype=np.float32)
    assert [(each.name, each.dtype) for each in kernel.numbers] == [
        ("d", "float64"),
        ("n", "uint32"),
        ("l", "int64"),
        ("f", "float32"),
    ]
    for numbers in ({"d": 0.5, "n": 16, "l": -3, "f": 2.0}, {"d": -1.5, "n": 16, "l": 1 << 40, "f": 0.0}):
        expected = a * np.float32(numbers["f"]) + np.float32(numbers["d"]) + np.float32(numbers["l"])
        np.testing.assert_allclose(np.asarray(kernel(ag.asarray(a, device="opencl"), **numbers)), expected)
    with pytest.raises(ag.InvalidOption, match="vectors of 4"):
        kernel(a[:63], 0.5, 16, -3, 2.0)


def test_a_text_is_read_once_for_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = trials.reflected

    def counted(*arguments: Any) -> Any:
        read.append(arguments[3])
        return original(*arguments)

    monkeypatch.setattr(trials, "reflected", counted)
    for name in ("one", "other"):  # the second as in another process
        assert ag.Kernel(SCALE["opencl"], scaled, name=name).numbers[0].name == "alpha"
    assert read == ["one"]
    ag.Kernel(COUNT["opencl"], constants={"STEP": 2})
    assert len(read) == 2


def test_without_a_device_opencl_c_is_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy")
    monkeypatch.setenv("ANYGPU_FALLBACK", "allow")
    text = SCALE["opencl"].replace("float alpha", "float alpha, uint n")
    kernel = ag.Kernel(text, scaled)
    assert (kernel.name, kernel.parameters, kernel.numbers) == ("scale", (), ())
    assert "which no device of this machine can read" in repr(kernel)
    assert list(inspect.signature(kernel).parameters) == ["a", "alpha"]
    np.testing.assert_allclose(kernel(A, alpha=2.0, n=1000), A * 2)
    np.testing.assert_allclose(np.asarray(kernel(ag.asarray(A, device="numpy"), alpha=2.0, n=1000)), A * 2)
    np.testing.assert_allclose(ag.offload(lambda x: kernel(x, 2.0) + 1)(A), A * 2 + 1)
    with pytest.raises(ag.InvalidOption, match="Give numbers by name"):
        kernel(A, 2.0, 1000)
    with pytest.raises(ag.DeviceUnavailable, match="OpenCL C"):
        ag.Kernel(text)(A, 2.0, 1000)


def test_a_tolerance_allows_for_less_exact_kernels(language: Language) -> None:
    rough = SCALE[language].replace("alpha * a", "1.001 * alpha * a").replace("1.001 *", "1.001f *")
    with pytest.raises(ag.errors.WrongKernel):
        ag.Kernel(rough, scaled)(A, 2.0)
    np.testing.assert_allclose(ag.Kernel(rough, scaled, tolerance=0.01)(A, 2.0), A * 2, rtol=0.01)


def test_it_is_checked_once_for_a_source_and_a_shape(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    original = trials.run

    def counted(*arguments: Any) -> Any:
        ran.append(arguments[3])
        return original(*arguments)

    monkeypatch.setattr(trials, "run", counted)
    kernel = ag.Kernel(SCALE[language], scaled)
    for alpha in (1.0, 2.0, 3.0):
        kernel(A, alpha)
    assert len(ran) == 1
    kernel(A[:10], 1.0)
    assert len(ran) == 2
    again = ag.Kernel(SCALE[language], scaled, name="another name")  # as the next process would
    again(A, 1.0)
    assert len(ran) == 2
    ag.Kernel(SCALE[language], lambda a, alpha: alpha * a + 0)(A, 1.0)  # another reference
    assert len(ran) == 3
    again.check(A, 5.0)
    assert len(ran) == 4


_FACTOR = 2.0


def _references(factor: float) -> dict[str, Any]:
    """Functions of one code that compute different things."""
    helper = eval(f"lambda: {factor}")

    def by_closure(a: Any, alpha: float) -> Any:
        return a * np.float32(alpha * factor)

    def by_default(a: Any, alpha: float, more: float = factor) -> Any:
        return a * np.float32(alpha * more)

    def by_helper(a: Any, alpha: float) -> Any:
        return a * np.float32(alpha * helper())

    def by_global(a: Any, alpha: float) -> Any:
        return a * np.float32(alpha * _FACTOR)

    class Times:
        def __init__(self) -> None:
            self.factor = factor

        def __call__(self, a: Any, alpha: float) -> Any:
            return a * np.float32(alpha * self.factor)

    def not_recorded(a: Any, alpha: float) -> Any:
        return np.array([float(each) * alpha * factor for each in a], np.float32)

    by_attribute = Times()
    return {
        "closure": by_closure,
        "default": by_default,
        "helper": by_helper,
        "global": by_global,
        "attribute": by_attribute,
        "bound": by_attribute.__call__,
        "not_recorded": not_recorded,
    }


@pytest.mark.parametrize("how", list(_references(1.0)))
def test_a_reference_of_the_same_code_with_other_values_is_compared(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANYGPU_CACHE_DIR", str(tmp_path))
    a = np.arange(4, dtype=np.float32)
    monkeypatch.setitem(globals(), "_FACTOR", 1.0)
    right = ag.Kernel(SCALE["opencl"], _references(1.0)[how])
    np.testing.assert_array_equal(np.asarray(right(a, alpha=2.0)), a * 2)
    monkeypatch.setitem(globals(), "_FACTOR", 3.0)
    wrong = ag.Kernel(SCALE["opencl"], _references(3.0)[how])
    with pytest.raises(ag.errors.WrongKernel):
        wrong(a, alpha=2.0)


def test_a_type_that_does_not_fit_is_never_converted(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language], scaled)
    with pytest.raises(ag.InvalidOption, match=r"array of float32, and got one of float64.*astype"):
        kernel(A.astype(np.float64), 2.0)
    with pytest.raises(ag.InvalidOption, match="gives y in float64"):
        ag.Kernel(SCALE[language], lambda a, alpha: (a * alpha).astype(np.float64))(A, 2.0)
    with pytest.raises(ag.InvalidOption, match="returns 2 arrays"):
        ag.Kernel(SCALE[language], lambda a, alpha: (a, a))(A, 2.0)


def test_errors_of_the_compiler_point_into_the_source(language: Language) -> None:
    broken = SCALE[language].replace("alpha * a", "alhpa * a")
    line = next(number for number, text in enumerate(broken.splitlines(), 1) if "alhpa" in text)
    with pytest.raises(ag.errors.InvalidKernel, match=f"line {line}") as caught:
        ag.Kernel(broken, scaled)
    assert caught.value.line == line
    assert "alhpa" in str(caught.value)


def test_a_user_error_in_the_reference_is_the_users(language: Language) -> None:
    def reference(a: Any, alpha: float) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ag.Kernel(SCALE[language], reference)(A, 2.0)


def test_it_is_pickled_by_its_arguments(language: Language) -> None:
    kernel = pickle.loads(pickle.dumps(ag.Kernel(SCALE[language], scaled, tolerance=1e-3)))
    np.testing.assert_allclose(kernel(A, 2.0), A * 2, rtol=1e-6)


def test_empty_arrays_and_single_numbers(language: Language) -> None:
    kernel = ag.Kernel(SCALE[language], scaled)
    for shape in ((0,), (3, 0), (), (1,)):
        values = np.full(shape, 2, np.float32)
        found = np.asarray(kernel(ag.asarray(values, device=ENGINE[language]), 2.0))
        np.testing.assert_array_equal(found, values * 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout"),
        ({"tolerance": -1}, "tolerance"),
        ({"tolerance": (1, 2, 3)}, "tolerance"),
        ({"reference": 3}, "reference"),
        ({"updates": "x"}, "updates"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ag.InvalidOption, match=words):
        ag.Kernel(SCALE["wgsl"], **options)


def test_where_no_device_speaks_the_language_it_says_so_once(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYGPU_ENGINES", "numpy")
    kernel = ag.Kernel(SCALE[language], scaled)
    with pytest.warns(
        ag.errors.DeviceFallback, match="scale runs its reference instead: no device of this machine takes"
    ):
        np.testing.assert_allclose(kernel(A, 2.0), A * 2)
    np.testing.assert_allclose(kernel(A, 2.0), A * 2)
    with pytest.raises(ag.DeviceUnavailable, match=ENGINE[language]):
        kernel.check(A, 2.0)
    monkeypatch.setenv("ANYGPU_FALLBACK", "raise")
    with pytest.raises(ag.DeviceUnavailable):
        kernel(A, 2.0)


def test_subgroups_are_enabled_as_the_standard_asks() -> None:
    kernel = ag.Kernel("""
    enable subgroups;
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> y: array<f32>;
    @compute @workgroup_size(64)
    fn total(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = subgroupAdd(x[id.x]); }
    """)
    totals = np.asarray(kernel(ag.asarray(np.ones(64, np.float32), device="webgpu:0")))
    assert set(totals) <= {4.0, 8.0, 16.0, 32.0, 64.0}


def test_the_signature_of_the_class_is_that_of_its_constructor() -> None:
    assert list(inspect.signature(ag.Kernel).parameters)[:2] == ["source", "reference"]
