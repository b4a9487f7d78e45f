"""Programs on every engine: the shared suite, and the traps that the libraries lay.

A missing engine is a failure, never a skip.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, get_args

import numpy as np
import pytest

from anygpu.base.lru import LRUCache
from anygpu.base.typing import HostArray
from anygpu.engines import catalogue
from anygpu.engines.codegen.value_analysis import IndexFacts
from anygpu.engines.jax.elementwise import COMPLEX_OTHERWISE
from anygpu.engines.numpy import lowering as reference
from anygpu.engines.protocol import ProgramEngine
from anygpu.errors import OutOfMemory
from anygpu.hardware.device import Device
from anygpu.program.dtypes import DType
from anygpu.program.functions import LinearFunction
from anygpu.program.graph import Node, Program
from anygpu.program.primitives import (
    Argsort,
    Binary,
    Broadcast,
    Cast,
    Constant,
    Contract,
    Fourier,
    Gather,
    Input,
    Iota,
    Linear,
    Primitive,
    Reduce,
    Scan,
    Scatter,
    Search,
    Sort,
    Unary,
)
from anygpu.testing import FakeEngine, check_engine_programs, fake_device
from tests.support.interrupting import AtMoment, places_of

NAMES = ("numpy", "cpu", "torch", "jax")
COMPILING = ("torch", "jax")


def opened(name: str) -> tuple[ProgramEngine, Device]:
    engine = catalogue.load(next(entry for entry in catalogue.BUILT_IN if entry.name == name))
    assert isinstance(engine, ProgramEngine)
    devices = [item for item in engine.discover() if isinstance(item, Device) and item.kind == "cpu"]
    assert devices, f"{name} has no device on the CPU: run scripts/setup"
    return engine, devices[0]


def program_of(op: Primitive, *inputs: HostArray) -> Program:
    nodes = [Node(Input(each.shape, each.dtype.name)) for each in inputs]  # type: ignore[arg-type]
    return Program([*nodes, Node(op, tuple(range(len(inputs))))], [len(inputs)])


def run(name: str, program: Program, *inputs: HostArray) -> list[HostArray]:
    engine, device = opened(name)
    assert engine.supports(program, device) == []
    results = engine.execute(engine.compile(program, device), [engine.upload(each, device) for each in inputs])
    return [engine.download(each) for each in results]


def compare(name: str, op: Primitive, *inputs: HostArray) -> None:
    """Equal to the reference to the last bit, NaN being equal to itself."""
    compare_all(name, [(op, *range(len(inputs)))], *inputs)


def compare_all(name: str, steps: list[tuple[Any, ...]], *inputs: HostArray) -> None:
    """Several primitives in one program, because compiling takes a while; each names the inputs it takes."""
    nodes = [Node(Input(each.shape, each.dtype.name)) for each in inputs]  # type: ignore[arg-type]
    nodes += [Node(op, tuple(sources)) for op, *sources in steps]
    program = Program(nodes, range(len(inputs), len(nodes)))
    wanted_of_all, got_of_all = reference.run(program, inputs), run(name, program, *inputs)
    for (op, *_), wanted, got in zip(steps, wanted_of_all, got_of_all, strict=True):
        assert got.dtype == wanted.dtype, op
        np.testing.assert_array_equal(got, wanted, err_msg=str(op))


# The shared suite.


@pytest.mark.parametrize("name", ["numpy", pytest.param("cpu", marks=pytest.mark.full), "torch"])
def test_every_primitive_function_and_type(name: str) -> None:
    engine, device = opened(name)
    reasons = check_engine_programs(engine, device, deep=True)
    of_complex = ("running max", "running min", "running prod", "scatter maximum", "scatter minimum", "search")
    lacking = [f"{what} for {dtype}" for what in of_complex for dtype in ("complex64", "complex128")]
    wanted = [f"torch has no {each} on the CPU" for each in ["gcd for uint64", *lacking]]
    wanted = sorted({*wanted, "torch's complex powers are not NumPy's at zeros and infinities"})
    assert reasons == (wanted if name == "torch" else [])


def test_every_primitive_and_function_and_kind_of_type_on_cpu() -> None:
    """Every pair of function and type is in the full set: each is compiled."""
    assert check_engine_programs(*opened("cpu")) == []


def test_every_primitive_and_function_and_kind_of_type_on_jax() -> None:
    """Not every pair of function and type, because each is compiled for a while; `deep=True` does them all by hand."""
    reasons = check_engine_programs(*opened("jax"))
    otherwise = (*COMPLEX_OTHERWISE, "power", "prod")
    strange = [f"jax's complex {fn} is not NumPy's at zeros, infinities and NaN" for fn in otherwise]
    assert reasons == sorted(strange + [f"jax has no scatter {fn} for complex64" for fn in ("maximum", "minimum")])


def test_every_primitive_and_function_and_kind_of_type_on_webgpu() -> None:
    """OpenCL has the same kernels in another dialect; compiling all of them takes minutes there: that is by hand."""
    reasons = check_engine_programs(*opened("webgpu"))
    linear = {reason for reason in reasons if reason.startswith("anygpu has no kernel for ")}
    assert {reason.rpartition(" ")[2] for reason in linear} <= set(get_args(LinearFunction))
    assert set(reasons) - linear <= {
        "complex powers of infinities and NaN are NumPy's own",
        "signs of zeros in complex products depend on their order",
    }


def test_a_fake_runs_programs_too() -> None:
    assert check_engine_programs(FakeEngine(), fake_device("fake:0")) == []


@pytest.mark.parametrize("fault", ["raise", "wrong_result"])
def test_the_suite_itself_can_fail(fault: str) -> None:
    engine = FakeEngine(faults={"execute fake:0": fault})  # type: ignore[dict-item]
    with pytest.raises((AssertionError, RuntimeError), match=r"instead of|bad mood"):
        check_engine_programs(engine, fake_device("fake:0"))


class Forgetful(FakeEngine):
    """Breaks one rule at a time."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule

    def upload(self, values: HostArray, device: Device) -> HostArray:
        return values if self.rule == "shares memory" else super().upload(values, device)

    def download(self, buffer: HostArray) -> HostArray:
        return buffer.astype(np.float32) if self.rule == "narrows" and buffer.dtype == np.float64 else buffer

    def execute(self, executable: Any, buffers: Any) -> list[HostArray]:
        if self.rule == "writes to its inputs" and buffers and buffers[0].size:
            buffers[0].flat[0] = 1
        if self.rule == "clamps indices" and isinstance(executable.program.nodes[-1].op, Gather):
            return [np.zeros(3, np.float32)]
        return super().execute(executable, buffers)


@pytest.mark.parametrize("rule", ["shares memory", "narrows", "writes to its inputs", "clamps indices"])
def test_the_suite_notices_an_engine_that(rule: str) -> None:
    with pytest.raises(AssertionError):
        check_engine_programs(Forgetful(rule), fake_device("fake:0"))


# Whole numbers.

WHOLE: tuple[DType, ...] = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.sampled(gate=2)
@pytest.mark.parametrize("name", COMPILING)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint64"])
def test_division_by_zero_and_of_the_least_number(name: str, dtype: str) -> None:
    extremes = np.iinfo(dtype)
    some = [extremes.min, extremes.max, 0, 1, 7, extremes.max // 2 + 3, *([-1, -7] if extremes.min else [])]
    x, y = (each.ravel() for each in np.meshgrid(np.array(some, dtype), np.array(some, dtype)))
    nodes = [Node(Input(x.shape, dtype)), Node(Input(x.shape, dtype))]  # type: ignore[arg-type]
    functions = ("floor_divide", "remainder", "fmod")
    program = Program([*nodes, *(Node(Binary(fn), (0, 1)) for fn in functions)], [2, 3, 4])  # type: ignore[arg-type]
    for wanted, got in zip(reference.run(program, [x, y]), run(name, program, x, y), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", WHOLE)
def test_torch_orders_unsigned_numbers_by_value(dtype: DType) -> None:
    x = np.array([3, 1, np.iinfo(dtype).max, 0, np.iinfo(dtype).max - 1, 1], dtype)
    ops = (Sort(0), Argsort(0), Reduce("max", (0,)), Reduce("min", (0,)), Reduce("argmax", (0,)), Scan("max", 0))
    for op in ops:
        compare("torch", op, x)
    compare("torch", Search("right"), np.sort(x), x)


@pytest.mark.parametrize("name", COMPILING)
def test_integers_to_negative_powers_are_refused(name: str) -> None:
    x = np.array([2, 3])
    with pytest.raises(ValueError, match="negative integer powers"):
        run(name, program_of(Binary("power"), x, np.array([1, -1])), x, np.array([1, -1]))


@pytest.mark.parametrize("name", COMPILING)
def test_a_count_of_bits_is_that_of_the_magnitude(name: str) -> None:
    compare(name, Unary("popcount"), np.array([-1, 0, 255, -(1 << 63), (1 << 63) - 1]))


@pytest.mark.parametrize("name", COMPILING)
def test_signs_of_complex_zeros_and_numbers_that_come_around(name: str) -> None:
    """The table of special values has all of them, and takes minutes to compile."""
    zeros = np.array([complex(real, imaginary) for real in (0.0, -0.0, -4.0) for imaginary in (0.0, -0.0)])
    whole = np.array([-1.0, -(2.0**40), 2.0**62])
    ops: list[tuple[Any, ...]] = [(Unary("negative"), 0), (Unary("sqrt"), 0), (Cast("uint64"), 1)]
    program = Program(
        [
            *(Node(Input(each.shape, each.dtype.name)) for each in (zeros, whole)),  # type: ignore[arg-type]
            *(Node(op, (source,)) for op, source in ops),
        ],
        (2, 3, 4),
    )
    wanted, got = reference.run(program, [zeros, whole]), run(name, program, zeros, whole)
    for one, other in zip(wanted, got, strict=True):
        assert one.tobytes() == other.tobytes()


def test_an_interrupt_of_numpys_engine_leaves_the_modes_of_floating_point() -> None:
    """Tasks that are submitted with other modes share no batch, for as long as the thread lives."""
    x = np.zeros(3)
    program = program_of(Unary("reciprocal"), x)
    before = np.geterr()
    places = places_of(lambda: reference.run(program, [x]))
    assert places
    for place in places:
        AtMoment(place).run(lambda: reference.run(program, [x]))
        assert np.geterr() == before


# Order and what is not a number.


@pytest.mark.parametrize("name", COMPILING)
def test_nan_in_order(name: str) -> None:
    x = np.array([[1, np.nan, 3, np.nan], [-np.inf, 2, np.inf, 2], [2, 2, 1, 1]])
    line = np.array([-1, 0, np.inf, np.nan, np.nan])
    reductions = [Reduce("max", (1,)), Reduce("min", (1,)), Reduce("argmax", (1,)), Reduce("argmin", (1,))]
    steps: list[tuple[Any, ...]] = [(op, 0) for op in (Sort(1), Argsort(1), *reductions)]
    steps += [(Search(side), which, 0) for side in ("left", "right") for which in (1, 2)]
    compare_all(name, steps, x, line, line[:3])


@pytest.mark.parametrize("name", COMPILING)
def test_complex_numbers_in_order(name: str) -> None:
    nan = np.nan
    x = np.array([1 + 2j, 1 - 1j, complex(nan, 1), 0, complex(1, nan), complex(nan, nan), 5, complex(0, nan), 1 - 1j])
    ops = (Sort(0), Argsort(0), Reduce("max", (0,)), Reduce("argmax", (0,)), Reduce("argmin", (0,)))
    steps: list[tuple[Any, ...]] = [(op, which) for op in ops for which in (0, 1)]
    steps += [(Binary(fn), 0, 2) for fn in ("less", "greater_equal", "maximum", "minimum")]
    compare_all(name, steps, x, x[:2], x[::-1].copy())


# Gather and scatter.


@pytest.mark.parametrize("name", COMPILING)
@pytest.mark.parametrize("batch", [0, 1])
def test_of_many_updates_of_one_element_the_last_counts(name: str, batch: int) -> None:
    rng = np.random.default_rng(batch)
    x = np.zeros((2, 50, 3), np.float32)
    index = rng.integers(0, 50, (2, 20_000) if batch else 20_000)
    updates = rng.normal(size=(2, 20_000, 3)).astype(np.float32)
    compare(name, Scatter("set", 1, batch), x, index, updates)


@pytest.mark.parametrize("name", COMPILING)
@pytest.mark.parametrize("outside", [5, -1])
def test_an_index_outside_says_which_axis_was_too_short(name: str, outside: int) -> None:
    x, index = np.arange(5.0), np.array([0, outside])
    with pytest.raises(IndexError, match="axis with size 5"):
        run(name, program_of(Gather(0), x, index), x, index)
    with pytest.raises(IndexError, match="axis with size 5"):
        run(name, program_of(Scatter("maximum", 0), x, index, x[:2]), x, index, x[:2])


@pytest.mark.parametrize("name", COMPILING)
def test_a_constant_index_outside_is_found_too(name: str) -> None:
    x, index = np.arange(5.0), np.array([0, 5])
    nodes = [Node(Input((5,), "float64")), Node(Constant((2,), "int64", index.tobytes())), Node(Gather(0), (0, 1))]
    with pytest.raises(IndexError):
        run(name, Program(nodes, [2]), x)


def facts_of(*nodes: Node) -> tuple[IndexFacts, int]:
    """What is known of the last of these nodes, which some gather uses."""
    last = len(nodes) - 1
    program = Program([*nodes, Node(Iota(9, "float32")), Node(Gather(0), (last + 1, last))], [last + 2])
    return IndexFacts(program), last


def test_what_is_known_of_indices_before_a_run() -> None:
    constant = Node(Constant((3,), "int64", np.array([4, 0, 2]).tobytes()))
    facts, last = facts_of(constant)
    assert facts.surely_in_range(last, 5)
    assert not facts.surely_in_range(last, 4)
    assert facts.surely_distinct(last)
    given = Node(Input((3,), "int64"))
    facts, last = facts_of(given, Node(Argsort(0), (0,)))
    assert facts.surely_in_range(last, 3)
    assert facts.surely_distinct(last)
    facts, last = facts_of(given)
    assert not facts.surely_in_range(last, 1 << 40)
    assert not facts.surely_distinct(last)
    seven = Node(Constant((3,), "int64", np.array([7, 7, 7]).tobytes()))
    facts, last = facts_of(given, seven, Node(Binary("remainder"), (0, 1)))
    assert facts.surely_in_range(last, 7)
    assert not facts.surely_distinct(last)
    facts, last = facts_of(constant, Node(Binary("subtract"), (0, 0)))
    assert not facts.surely_in_range(last, 5)
    facts, last = facts_of(Node(Iota(300, "int8")))
    assert not facts.surely_in_range(last, 300)
    assert not facts.surely_distinct(last)
    facts, last = facts_of(Node(Iota(3, "int64")), Node(Broadcast((2, 3)), (0,)))
    assert facts.surely_in_range(last, 3)
    assert not facts.surely_distinct(last)


# Floats.


@pytest.mark.parametrize("name", COMPILING)
def test_scaling_by_powers_of_two_is_exact_over_the_whole_range(name: str) -> None:
    x = np.array([1.0, -1.5, 3e-300, 1e300, np.inf, np.nan, 0.0, -0.0, 1.0, 1.75])
    exponents = np.array([1000, -1000, 2000, -1900, 5, 5, 9, 9, 2147483647, -1022], np.int32)
    compare(name, Binary("ldexp"), x, exponents)


def test_torch_gives_subnormal_numbers_as_numpy_does() -> None:
    compare("torch", Binary("ldexp"), np.array([1.0, 1.75, 1.0]), np.array([-1074, -1073, -2000], np.int32))
    compare("torch", Binary("multiply"), np.array([1e-200]), np.array([3e-110]))


@pytest.mark.parametrize("name", COMPILING)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_cube_roots(name: str, dtype: str) -> None:
    x = np.array([0, -0.0, 8, -27, 1e-30, 3e37, -np.inf, np.nan, 2], dtype)
    (got,) = run(name, program_of(Unary("cbrt"), x), x)
    np.testing.assert_allclose(got, np.cbrt(x), rtol=2 * float(np.finfo(dtype).eps), atol=0)
    assert np.signbit(got[1])


@pytest.mark.parametrize("name", COMPILING)
def test_half_precision_is_summed_in_single(name: str) -> None:
    x = np.full((20_000,), 0.1, np.float16)
    (got,) = run(name, program_of(Reduce("sum", (0,)), x), x)
    np.testing.assert_allclose(float(got), 20_000 * float(np.float16(0.1)), rtol=1e-3)
    a = np.full((2, 5000), 0.1, np.float16)
    (got,) = run(name, program_of(Contract((1,), (1,)), a, a), a, a)
    np.testing.assert_allclose(got.astype(float), 5000 * float(np.float16(0.1)) ** 2, rtol=1e-3)


@pytest.mark.parametrize("name", COMPILING)
def test_64_bits_are_never_narrowed(name: str) -> None:
    x = np.array([1 + 2**-50, 1e300])
    whole = np.array([2**53 + 1, -(2**62)])
    nodes = [Node(Input((2,), "float64")), Node(Input((2,), "int64")), Node(Unary("negative"), (0,))]
    nodes += [Node(Unary("negative"), (1,)), Node(Iota(2, "int64")), Node(Binary("add"), (1, 4))]
    negative, negative_whole, more = run(name, Program(nodes, [2, 3, 5]), x, whole)
    np.testing.assert_array_equal(negative, -x)
    np.testing.assert_array_equal(negative_whole, -whole)
    np.testing.assert_array_equal(more, whole + np.arange(2))


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_torch_squares_by_multiplying_even_when_the_two_was_cast(dtype: DType) -> None:
    import torch

    two = Node(Constant((), "int64", np.array(2).tobytes()))
    nodes = [Node(Input((3,), dtype)), two, Node(Cast(dtype), (1,)), Node(Broadcast((3,)), (2,))]
    x = np.array([1.1, -7.3, 1e-3]).astype(dtype) * np.array(1 + 1j if dtype == "complex64" else 1, dtype)
    (got,) = run("torch", Program([*nodes, Node(Binary("power"), (0, 3))], [4]), x)
    np.testing.assert_array_equal(got, (torch.from_numpy(x) * torch.from_numpy(x)).numpy())


# Linear algebra and transforms.


@pytest.mark.parametrize("name", COMPILING)
def test_a_singular_matrix_is_numpys_error(name: str) -> None:
    engine, device = opened(name)
    singular, negative = np.zeros((2, 3, 3)), -np.eye(3)
    for op, arrays in ((Linear("solve"), (singular, singular)), (Linear("cholesky"), (negative,))):
        with pytest.raises(np.linalg.LinAlgError) as caught:
            run(name, program_of(op, *arrays), *arrays)
        assert engine.classify(caught.value, device) is None


@pytest.mark.parametrize("name", COMPILING)
def test_only_the_lower_triangle_is_read(name: str) -> None:
    a = np.array([[4.0, 99.0], [1.0, 3.0]])
    for fn in ("cholesky", "eigvalsh"):
        (wanted,) = reference.run(program_of(Linear(fn), a), [a])
        (got,) = run(name, program_of(Linear(fn), a), a)
        np.testing.assert_allclose(np.tril(got), np.tril(wanted), atol=1e-14)


def test_torch_computes_a_decomposition_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    calls: list[int] = []
    whole = torch.linalg.svd

    def counted(*matrices: Any, **options: Any) -> Any:
        calls.append(1)
        return whole(*matrices, **options)

    monkeypatch.setattr(torch.linalg, "svd", counted)
    engine, device = opened("torch")
    a = np.arange(12.0).reshape(4, 3)
    parts = [Node(Linear("svd", part), (0,)) for part in range(3)]
    executable = engine.compile(Program([Node(Input((4, 3), "float64")), *parts], [1, 2, 3]), device)
    results = engine.execute(executable, [engine.upload(a, device)])
    left, sizes, right = (engine.download(each) for each in results)
    np.testing.assert_allclose(left * sizes @ right, a, atol=1e-12)
    assert len(calls) == 1


@pytest.mark.parametrize("name", COMPILING)
def test_an_inverse_real_transform_takes_no_notice_of_what_must_be_real(name: str) -> None:
    x = np.array([1 + 1j, 2 - 1j, 3 + 3j])
    for length in (4, 5):
        (wanted,) = reference.run(program_of(Fourier("irfft", 0, length), x), [x])
        (got,) = run(name, program_of(Fourier("irfft", 0, length), x), x)
        np.testing.assert_allclose(got, wanted, atol=1e-14)


# The life of buffers and executables.


@pytest.mark.parametrize("name", COMPILING)
def test_a_program_is_compiled_once_however_often_it_is_made(name: str) -> None:
    engine, device = opened(name)
    x = np.ones(3)
    first = engine.compile(program_of(Unary("exp"), x), device)
    assert engine.compile(program_of(Unary("exp"), x), device) is first
    assert engine.compile(program_of(Unary("sin"), x), device) is not first


def test_the_oldest_is_forgotten_first() -> None:
    recent: LRUCache[str] = LRUCache(2)
    made: list[str] = []

    def make() -> str:
        made.append("one more")
        return made[-1]

    for key in "abac":
        recent.get(key, make)
    assert len(made) == 3
    recent.get("a", make)
    assert len(made) == 3
    recent.get("b", make)
    assert len(made) == 4
    assert len(recent) == 2


def test_torch_lets_go_of_values_after_their_last_use() -> None:
    import torch

    from anygpu.engines.torch.lowering import compile_program

    x = torch.ones(1000)
    executable = compile_program(
        Program([Node(Input((1000,), "float32")), *(Node(Unary("exp"), (n,)) for n in range(4))], [4]),
        torch.device("cpu"),
        opened("torch")[1],
    )
    alive: list[int] = []
    made: list[weakref.ref[Any]] = []
    steps = [call._replace(step=_watched(call.step, made, alive)) for call in executable._calls]
    executable._calls = tuple(steps)
    executable.run([x])
    gc.collect()
    assert max(alive) <= 1


def _watched(step: Any, made: list[weakref.ref[Any]], alive: list[int]) -> Any:
    def watched(*tensors: Any) -> Any:
        result = step(*tensors)
        alive.append(sum(each() is not None for each in made))
        made.append(weakref.ref(result))
        return result

    return watched


@pytest.mark.parametrize("name", COMPILING)
def test_many_threads_may_run_one_program(name: str) -> None:
    engine, device = opened(name)
    program = program_of(Binary("multiply"), np.ones(100), np.ones(100))
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            x = np.full(100, float(number))
            (got,) = engine.execute(engine.compile(program, device), [engine.upload(x, device)] * 2)
            if not (engine.download(got) == number**2).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_adopting_from_numpy_and_from_each_other(name: str) -> None:
    engine, device = opened(name)
    read_only = np.arange(3.0)
    read_only.flags.writeable = False
    plain = np.arange(6.0).reshape(2, 3)
    for array in (plain, plain.T, plain[::-1], plain[:, ::2], read_only, np.array([1, 2], np.uint16), np.array(2 + 1j)):
        buffer = engine.adopt(array, device)
        assert (engine.download(buffer) == array).all()
        program = program_of(Binary("add"), array, array)
        (result,) = engine.execute(engine.compile(program, device), [buffer, buffer])
        assert (engine.download(result) == array + array).all()
    other, place = opened("torch")
    tensor = other.native(other.upload(np.arange(3.0), place))
    assert (engine.download(engine.adopt(tensor, device)) == np.arange(3.0)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_other_order_of_bytes(name: str) -> None:
    x = np.array([1.0, 2.0]).astype(">f8")
    (got,) = run(name, program_of(Unary("negative"), x), x)
    np.testing.assert_array_equal(got, [-1.0, -2.0])


@pytest.mark.parametrize("name", NAMES)
def test_a_broadcast_can_be_handed_to_others(name: str) -> None:
    engine, device = opened(name)
    program = program_of(Broadcast((3, 2)), np.array([1.0, 2.0]))
    (wide,) = engine.execute(engine.compile(program, device), [engine.upload(np.array([1.0, 2.0]), device)])
    other, place = opened("jax")
    adopted = other.adopt(engine.native(wide), place)
    np.testing.assert_array_equal(other.download(adopted), [[1.0, 2.0]] * 3)


def test_torch_adopts_without_a_copy() -> None:
    engine, device = opened("torch")
    array = np.arange(3.0)
    assert np.shares_memory(engine.download(engine.adopt(array, device)), array)


@pytest.mark.parametrize("name", COMPILING)
def test_bfloat16_inside_a_program(name: str) -> None:
    x = np.array([1.0, 2.5, 1 / 3], np.float32)
    nodes = [Node(Input((3,), "float32")), Node(Cast("bfloat16"), (0,)), Node(Binary("multiply"), (1, 1))]
    nodes += [Node(Unary("exp"), (2,)), Node(Sort(0), (3,)), Node(Cast("float64"), (4,))]
    (got,) = run(name, Program(nodes, [5]), x)
    np.testing.assert_allclose(got, np.sort(np.exp(x.astype(float) ** 2)), rtol=2**-6)


# What a device lacks, and errors.


def test_what_a_device_cannot_hold_is_said_with_a_reason() -> None:
    import torch

    from anygpu.engines.jax import engine as jax_lowering
    from anygpu.engines.torch import lowering as torch_lowering

    x = np.ones(3)
    doubled = program_of(Binary("add"), x, x)
    (lack,) = torch_lowering.lacks(doubled, torch.device("mps"))
    assert (lack.node, lack.reason) == (2, "mps has no float64")
    assert torch_lowering.home("float64", torch.device("mps")).type == "cpu"
    assert torch_lowering.home("float32", torch.device("mps")).type == "mps"
    (lack,) = jax_lowering.lacks(doubled, "tpu")
    assert (lack.node, lack.reason) == (2, "jax has no float64 on tpu")
    (lack,) = jax_lowering.lacks(program_of(Linear("eig"), np.eye(2)), "cuda")
    assert lack.reason == "jax has no eig on cuda"
    assert jax_lowering.lacks(doubled, "cuda") == []


@pytest.mark.parametrize("name", COMPILING)
def test_memory_that_cannot_be_had_is_recognised(name: str) -> None:
    engine, device = opened(name)
    huge = Program([Node(Iota(1 << 50, "float64"))], [0])
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which type it is, is what is tested
        engine.execute(engine.compile(huge, device), [])
    assert isinstance(engine.classify(caught.value, device), OutOfMemory)
    assert isinstance(engine.classify(MemoryError(), device), OutOfMemory)
    assert engine.classify(IndexError("mine"), device) is None
