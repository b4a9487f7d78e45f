"""Calls of native code: whatever arrays they are given, from any thread and in any process."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from anygpu.array.trace.tracing import record
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.kernel import RESULT, UNKNOWN
from anygpu.engines.codegen.nests import steps
from anygpu.engines.cpu import compiler, runtime
from anygpu.engines.cpu import engine as executable_module
from anygpu.engines.cpu.engine import CpuExecutable
from anygpu.engines.cpu.pool import HAS_NATIVE_THREADS, wanted_threads
from anygpu.engines.cpu.run_plan import layout_of
from anygpu.engines.cpu.runtime import HostSteps, native_runtime
from anygpu.engines.numpy.lowering import run_node
from anygpu.errors import CannotCompile, InvalidOption, InvalidProgram
from anygpu.program.graph import Node
from anygpu.program.primitives import Argsort, Fourier, Linear, Scan, Sort, Spec
from tests.engines.cpu import hand_written
from tests.support.isolation import run_alone

rng = np.random.default_rng(0)


def is_direct(executable: CpuExecutable, *arrays: Any) -> bool:
    """Whether the compiled function takes these arguments itself."""
    return executable.call(*arrays) is not NotImplemented


@pytest.fixture(scope="module")
def added() -> CpuExecutable:
    return hand_written.added((6, 5))


X, Y = rng.random((6, 5)), rng.random((6, 5))


def test_plain_arrays_go_the_short_way(added: CpuExecutable) -> None:
    (result,) = added([X, Y])
    assert is_direct(added, X, Y)
    assert np.array_equal(result, X + Y)
    assert type(result) is np.ndarray
    assert result.flags.num == (X + Y).flags.num
    assert sys.getrefcount(result) == 2


def read_only(array: HostArray) -> HostArray:
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array: HostArray) -> HostArray:
    raw = np.empty(array.nbytes + 1, np.uint8)[1:]
    raw[:] = np.frombuffer(array.tobytes(), np.uint8)
    return raw.view(array.dtype).reshape(array.shape)


class Subclass(np.ndarray[Any, Any]):
    pass


LAYOUTS: dict[str, Callable[[HostArray], HostArray]] = {
    "read-only": read_only,
    "unaligned": unaligned,
    "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
    "backwards": lambda array: array[::-1].copy()[::-1],
    "Fortran": np.asfortranarray,
    "byte-swapped": lambda array: array.astype(array.dtype.newbyteorder()),
    "subclass": lambda array: array.copy().view(Subclass),
    "broadcast": lambda array: np.broadcast_to(array[:1], array.shape),
    "with metadata": lambda array: array.astype(np.dtype(array.dtype, metadata={"unit": "m"})),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout(added: CpuExecutable, layout: str) -> None:
    array = LAYOUTS[layout](X)
    before = array.copy()
    (result,) = added([array, Y])
    assert np.array_equal(result, np.asarray(array) + Y)
    assert type(result) is np.ndarray
    assert np.array_equal(array, before)
    assert not np.shares_memory(result, array)


def test_one_array_twice_and_arrays_that_overlap(added: CpuExecutable) -> None:
    assert np.array_equal(added([X, X])[0], X + X)
    long = rng.random(31)
    one, other = long[:30].reshape(6, 5), long[1:].reshape(6, 5)
    assert np.array_equal(added([one, other])[0], one + other)


@pytest.mark.parametrize(
    "arguments",
    [(), (X,), (X, Y, X), (X, Y.astype(np.float32)), (X, Y.ravel()), (X, Y.reshape(5, 6)), (X, X.astype(">f4"))],
)
def test_what_does_not_fit_the_program_is_refused(added: CpuExecutable, arguments: tuple[Any, ...]) -> None:
    assert not is_direct(added, *arguments)
    with pytest.raises(InvalidProgram):
        added(list(arguments))


@pytest.mark.parametrize("other", [1, None, "text", [1.0], np.float64(2)])
def test_what_is_no_array_is_left_to_the_long_way(added: CpuExecutable, other: object) -> None:
    assert not is_direct(added, X, other)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3, 4, 5)])
def test_shapes(shape: tuple[int, ...]) -> None:
    executable = hand_written.added(shape)
    x, y = rng.random(shape), rng.random(shape)
    (result,) = executable([np.asarray(x), np.asarray(y)])
    assert result.shape == shape
    assert np.array_equal(result, np.add(x, y))


@pytest.mark.parametrize("size", [10, 100_003, 1_000_003])
def test_temporaries_on_the_stack_and_large_ones(size: int) -> None:
    executable = hand_written.twice_the_square(size, 10_007)
    x = rng.random(size)
    assert is_direct(executable, x)
    assert np.array_equal(executable([x])[0], 2 * (x * x))
    assert np.array_equal(executable([x[::-1]])[0], 2 * (x * x)[::-1])


def test_wrong_indices_are_raised_as_numpy_raises_them() -> None:
    executable = hand_written.taken(10, 3)
    x = rng.random(10)
    assert np.array_equal(executable([x, np.array([9, 0, 3])])[0], x[[9, 0, 3]])
    for wrong in (10, -1, -11, 2**31):
        for _ in range(3):
            with pytest.raises(IndexError, match=r"is out of bounds for an axis with size 10"):
                executable([x, np.array([0, wrong, 1])])
    assert np.array_equal(executable([x, np.array([9, 0, 3])])[0], x[[9, 0, 3]])


def test_host_steps_and_results_that_share_a_slot() -> None:
    executable = hand_written.mixed(1000)
    x = rng.random(1000)
    first, second, third = executable([x])
    assert first == second == np.sum(x * x)
    assert not np.shares_memory(first, second)
    assert np.array_equal(third, x)
    assert not np.shares_memory(third, x)


def test_constants() -> None:
    assert np.array_equal(hand_written.constant_added()([np.ones(10)])[0], np.arange(10.0) + 1)


def test_where_the_layout_of_arrays_is_another_one_calls_go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_runtime(), "call", None)
    executable = hand_written.added()
    x = rng.random(100)
    assert not is_direct(executable, x, x)
    assert np.array_equal(executable([x, x])[0], x + x)


def test_the_layout_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.array_symbols.__wrapped__() is not None
    for field in runtime.FIELDS:
        monkeypatch.setitem(runtime.FIELDS, field, (runtime.FIELDS[field][0], 24))
        assert not all(map(runtime._is_as_expected, runtime._samples())), field
        monkeypatch.undo()


def test_nothing_leaks() -> None:
    executable = hand_written.added((1000,))
    x, y = rng.random(1000), rng.random(1000)
    for arguments in ([x, y], [x[::-1], y]):
        counts = sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(NotImplemented)
        for _ in range(500):
            executable(arguments)
        assert (sys.getrefcount(x), sys.getrefcount(y), sys.getrefcount(NotImplemented)) == counts
    code = weakref.ref(executable._code)
    del executable
    gc.collect()
    assert code() is None, "code that nobody can call is dropped"


def test_code_stays_while_it_is_called() -> None:
    """The program is dropped while threads are in it."""
    size = 200_000
    executable = hand_written.twice_the_square(size, 1000)
    x = rng.random(size)
    call = executable.call
    code = weakref.ref(executable._code)
    del executable
    gc.collect()
    assert code() is not None

    def work(call: Any) -> None:
        for _ in range(20):
            call(x)

    threads = [threading.Thread(target=work, args=(call,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    del call
    for thread in threads:
        thread.join()
    gc.collect()
    del threads, thread
    gc.collect()
    assert code() is None


# -- threads


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 4),
        ({"ANYGPU_THREADS": "2"}, 2),
        ({"ANYGPU_THREADS": "9"}, 9),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "8,2"}, 4),
        ({"OMP_NUM_THREADS": "nonsense"}, 4),
        ({"ANYGPU_THREADS": "1", "OMP_NUM_THREADS": "3"}, 1),
    ],
)
def test_the_number_of_threads(environment: dict[str, str], expected: int) -> None:
    assert wanted_threads(4, environment) == expected


@pytest.mark.parametrize("given", ["0", "-1", "many"])
def test_a_number_of_threads_that_is_none(given: str) -> None:
    with pytest.raises(InvalidOption, match="ANYGPU_THREADS"):
        wanted_threads(4, {"ANYGPU_THREADS": given})


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    executable = hand_written.twice_the_square(100_003, 501)
    x = rng.random(100_003)
    pool = native_runtime().pool
    try:
        found = []
        for threads in (1, 2, 4, 7):
            pool.start(threads)
            assert pool.threads == (threads if HAS_NATIVE_THREADS else 1)
            found += [executable([x])[0].tobytes() for _ in range(20)]
    finally:
        pool.start()
    assert set(found) == {(2 * (x * x)).tobytes()}


def test_eight_threads_at_once() -> None:
    executables = [hand_written.twice_the_square(size, grain) for size, grain in ((997, 10), (40_001, 100))]
    pool = native_runtime().pool
    wrong: list[int] = []

    def work(number: int) -> None:
        mine = np.random.default_rng(number)
        for turn in range(150):
            executable = executables[turn % 2]
            x = mine.random(executable.program.inputs[0].shape)
            given = x if turn % 3 else np.repeat(x, 2)[::2]
            if not np.array_equal(executable([given])[0], 2 * (x * x)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    try:
        pool.start(4)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        pool.start()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own() -> None:
    run_alone(fork_beside_threads)


def fork_beside_threads() -> None:
    """Alone: libraries of other tests do not outlive a fork."""
    executable = hand_written.twice_the_square(100_003, 501)
    x = rng.random(100_003)
    expected = 2 * (x * x)
    native_runtime().pool.start(3)
    for _ in range(20):
        child = os.fork()
        if not child:
            right = not native_runtime().pool.is_ready
            right &= all(np.array_equal(executable([x])[0], expected) for _ in range(3))
            os._exit(0 if right and native_runtime().pool.is_ready else 1)
        assert np.array_equal(executable([x])[0], expected)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_compiles_in_a_child_of_its_own() -> None:
    run_alone(compile_in_a_forked_process)


def compile_in_a_forked_process() -> None:
    hand_written.twice_the_square(11, 11)
    child = os.fork()
    if not child:
        found = hand_written.twice_the_square(4_097 + os.getpid() % 1000, 64)
        os._exit(0 if found.plan.slots else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert np.array_equal(hand_written.twice_the_square(12, 12)([np.ones(12)])[0], np.full(12, 2.0))


def test_interrupts() -> None:
    """Signals come all the time; each call is either done or interrupted, and memory comes back."""
    executable = hand_written.twice_the_square(300_000, 1000)
    x = rng.random(300_000)
    expected = 2 * (x * x)
    interrupted = 0
    usual = signal.getsignal(signal.SIGALRM)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(600):
            given = x if turn % 2 else np.repeat(x[:150_000], 2)[::2].repeat(2)[::2].repeat(2)
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00002 * (turn % 40 + 1))
                    result = executable([given])[0]
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            else:
                assert np.array_equal(result, expected if turn % 2 else 2 * (given * given))
    finally:
        signal.signal(signal.SIGALRM, usual)
    assert interrupted
    assert np.array_equal(executable([x])[0], expected)


def test_threads_hold_up_no_exit_and_sleep_at_rest() -> None:
    program = (
        "import time, resource, numpy as np\n"
        "from anygpu.engines.cpu.runtime import native_runtime\n"
        "from tests.engines.cpu.hand_written import twice_the_square\n"
        "native_runtime().pool.start(4)\n"
        "f = twice_the_square(100_000, 100)\n"
        "for _ in range(100): f([np.ones(100_000)])\n"
        "time.sleep(0.1)\n"
        "before = time.process_time()\n"
        "time.sleep(0.5)\n"
        "used = time.process_time() - before\n"
        "assert used < 0.05, f'{used} s of a processor at rest'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_threads_of_blas_limit_those_of_nests() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    pool = native_runtime().pool
    if not pool._state.blas_threads:
        pytest.skip("NumPy's BLAS does not say how many threads it uses")
    executable = hand_written.twice_the_square(100_000, 100)
    try:
        pool.start(4)
        pool._state.usual_blas_threads = 2
        runs = pool._state.ticket >> 32
        with threadpoolctl.threadpool_limits(1):
            executable([np.ones(100_000)])
        assert pool._state.ticket >> 32 == runs, "no other thread was asked"
        executable([np.ones(100_000)])
        assert pool._state.ticket >> 32 == runs + 2
    finally:
        pool.start()


# -- temporaries


def test_temporaries_share_memory_only_when_they_are_not_needed_at_the_same_time() -> None:
    layout = layout_of(hand_written.twice_the_square(100, 10).plan)
    assert layout.offsets == {2: 0}
    assert layout.nbytes >= 800


# -- host steps


X2 = rng.standard_normal((300, 400))
HOST_STEPS: dict[str, tuple[Any, Spec]] = {
    "rfft": (Fourier("rfft", 1, 400), Spec((300, 201), "complex128")),
    "fft of columns": (Fourier("fft", 0, 300), Spec((300, 400), "complex128")),
    "sort": (Sort(1), Spec((300, 400), "float64")),
    "argsort": (Argsort(0), Spec((300, 400), "int64")),
    "scan": (Scan("sum", 0), Spec((300, 400), "float64")),
}


@pytest.mark.parametrize("name", HOST_STEPS)
def test_rows_on_several_threads_are_the_same_rows(name: str) -> None:
    op, spec = HOST_STEPS[name]
    x = X2.astype(np.complex128) if name.startswith("fft") else X2
    expected = run_node(op, [x])
    steps = HostSteps()
    for threads in (1, 2, 3, 7):
        assert np.array_equal(steps.run(Node(op, (0,)), [x], spec, threads), expected)


def test_an_error_of_a_row_is_raised() -> None:
    steps = HostSteps()
    with pytest.raises(ValueError, match="shape"):
        steps.run(Node(Sort(1), (0,)), [X2], Spec((300, 401), "float64"), 4)


def test_a_decomposition_is_computed_once() -> None:
    a = rng.standard_normal((20, 20))
    parts: dict[Any, Any] = {}
    steps = HostSteps()
    for part, shape in enumerate(((20, 20), (20,), (20, 20))):
        steps.run(Node(Linear("svd", part, False), (0,)), [a], Spec(shape, "float64"), 1, parts)
    assert len(parts) == 1


# -- scratch


def long_rows(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return np.tanh(e / np.sum(e, axis=1, keepdims=True))


def test_scratch_of_long_rows_is_not_on_the_stack() -> None:
    x = rng.random((6, 100_000))
    compiled = executable_module.executable(record(long_rows, x))
    assert compiled.plan.scratch_slots
    found: list[HostArray] = []
    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=lambda: found.extend(compiled([x])))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert np.allclose(found[0], long_rows(x))


def test_without_memory_for_scratch_an_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(lambda size: None)
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    monkeypatch.setitem(native_runtime().symbols, "memory_take", address)
    x = rng.random((6, 100_000))
    compiled = executable_module.executable(record(long_rows, x))
    with pytest.raises(MemoryError, match="scratch"):
        compiled([x])


# -- results that are not finite


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("size", [1, 7, 100, 100_003])
def test_the_call_says_whether_results_are_finite(dtype: str, size: int) -> None:
    x = rng.random(size).astype(dtype)
    compiled = executable_module.executable(record(lambda x: x * x - x, x))
    assert compiled.checked([x])[1] == 0
    for wrong in (np.nan, np.inf, -np.inf):
        for place in {0, size // 2, size - 1}:
            y = x.copy()
            y[place] = wrong
            assert compiled.checked([y])[1] == RESULT
            assert compiled.checked([np.repeat(y, 2)[::2]])[1] == RESULT


def test_results_of_nests_with_scratch_in_memory_are_watched() -> None:
    x = rng.random((6, 100_000))
    compiled = executable_module.executable(record(long_rows, x))
    assert compiled.plan.scratch_slots
    assert compiled.checked([x])[1] == 0
    x[3, 777] = np.nan
    assert compiled.checked([x])[1] & RESULT


def test_results_of_numpy_are_not_watched() -> None:
    x = rng.random((30, 30))
    assert executable_module.executable(record(np.sort, x)).checked([x])[1] == UNKNOWN


# -- mistakes of ours


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child can be started."""
    monkeypatch.setattr(compiler, "_child", compiler.CompileChild())
    monkeypatch.setattr(sys, "frozen", True, raising=False)


@pytest.mark.usefixtures("compiled_here")
def test_a_mistake_while_nests_are_made_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistake(*given: Any, **named: Any) -> Any:
        raise IndexError("list index out of range")

    monkeypatch.setattr("anygpu.engines.cpu.planning.nests", mistake)
    with pytest.raises(CannotCompile, match="IndexError: list index out of range"):
        executable_module.executable(record(lambda x: x - 12.5, np.ones(13)))


@pytest.mark.usefixtures("compiled_here")
def test_a_program_that_is_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "FEWEST_VALUES", 5)
    monkeypatch.setattr(steps, "VALUES_OF_NODE", 0)
    with pytest.raises(CannotCompile, match="too large for native code: its loops compute more than 5 values"):
        executable_module.executable(record(lambda x: x - 13.5, np.ones(13)))
