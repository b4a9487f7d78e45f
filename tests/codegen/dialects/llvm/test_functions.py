"""Every function as the processor computes it: NumPy's values, the same in any number of lanes, with no C library."""

from __future__ import annotations

import numpy as np
import pytest

from anygpu.engines.codegen.dialects.llvm import functions
from anygpu.engines.codegen.dialects.llvm.loops import module_text
from anygpu.engines.codegen.dialects.llvm.values import NativeTarget
from anygpu.engines.codegen.functions import c_syntax
from anygpu.engines.codegen.kernel_ir import Apply, Literal, Name
from anygpu.engines.codegen.target import COMPUTE
from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import DType
from tests.codegen.dialects.llvm.function_values import evaluated, grouped, outcomes, together
from tests.codegen.dialects.llvm.running import Code, machine, mapped, native, undefined_symbols
from tests.codegen.function_cases import FLOATS, Case, cases, order_cases, points, random_floats, special_floats

#: In eps, relative to max(|result|, 1).
TOLERANCE = 4.0


def _kind(case: Case) -> str:
    return "casts" if case.fn.startswith("cast_") else "floats" if case.type in FLOATS else "integers"


def _of(kind: str) -> list[Case]:
    return [case for case in cases() if _kind(case) == kind]


@pytest.mark.parametrize("kind", ["floats", "integers", "casts"])
@pytest.mark.parametrize("lanes", [1, 16])
def test_every_function_means_what_numpy_means(lanes: int, kind: str) -> None:
    failures = []
    for each in outcomes(_of(kind), lanes):
        if each.wrong.any():
            failures.append(f"{each.wrong.sum()} wrong: {each.at(int(each.wrong.argmax()))}")
        elif each.worst > (0 if each.case.exact else TOLERANCE):
            failures.append(f"{each.worst:.1f} eps: {each.at(int(each.error.argmax()))}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("kind", ["floats", "integers", "casts"])
@pytest.mark.parametrize("lanes", [4, 8])
def test_functions_give_the_same_bits_in_any_number_of_lanes(lanes: int, kind: str) -> None:
    for group in grouped(_of(kind)):
        inputs = points(group[0], 513)
        single, wide = evaluated(group, inputs, 1), evaluated(group, inputs, lanes)
        for case, one, other in zip(group, single, wide, strict=True):
            same = (one == other) & (np.signbit(one) == np.signbit(other)) if one.dtype.kind == "f" else one == other
            assert (same | ((one != one) & (other != other))).all(), (case.fn, case.type)


@pytest.mark.parametrize("kind", ["floats", "integers", "casts"])
def test_a_processor_without_extensions_gives_the_same(kind: str) -> None:
    for each in outcomes(_of(kind), 4, 1025, plain=True):
        assert not each.wrong.any(), each.at(int(each.wrong.argmax()))
        assert each.worst <= (0 if each.case.exact else TOLERANCE), each.at(int(each.error.argmax()))


_WIDE = frozenset(("sse4.1", "avx2", "f16c", "fma"))
_PROCESSORS: dict[str, tuple[str, frozenset[str]]] = {
    "x86-64": ("x86_64-unknown-linux-gnu", frozenset()),
    "x86-64-v2": ("x86_64-unknown-linux-gnu", frozenset(("sse4.1",))),
    "x86-64-v3": ("x86_64-unknown-linux-gnu", _WIDE),
    "skylake-avx512": ("x86_64-unknown-linux-gnu", _WIDE | {"avx512f", "avx512dq"}),
    "generic": ("aarch64-unknown-linux-gnu", frozenset()),
}


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("cpu", _PROCESSORS)
def test_no_function_calls_a_c_library(cpu: str, lanes: int) -> None:
    triple, features = _PROCESSORS[cpu]
    of = machine(cpu, "", triple=triple)
    target = NativeTarget(of.triple, str(of.target_data), features, 16)
    for group in grouped(cases()):
        needed = undefined_symbols(module_text(together(group, 1000, lanes), target), of)
        assert needed <= {"_GLOBAL_OFFSET_TABLE_"}, (group[0].arguments, needed)


def test_order_keys_sort_as_numpy_does() -> None:
    for case in order_cases():
        (values,) = points(case, 1025)
        (keys,) = evaluated([case], [values], 8)
        assert (np.unique(keys, return_inverse=True)[1] == case.reference(values)).all(), case.type


def test_what_is_not_defined_is_refused() -> None:
    value = Apply("arc", (Name("x0", "f32"),), "f32")
    with pytest.raises(InvalidProgram, match="arc: is not defined for f32"):
        module_text(mapped(value, [("float32", "f32")], "float32", 8, 4), native())


def test_every_definition_can_be_read() -> None:
    for name in functions.definitions():
        if name not in ("mantissa", "exponent"):
            assert functions.definition(name).name == name


def test_the_parser_reads_what_the_files_have() -> None:
    tree = c_syntax.parsed(
        "static float f(float x) { #pragma OPENCL FP_CONTRACT ON\n const int k = x > 1.0f ? 1 : 0;"
        " for (int i = 0; i < 2; i++) { x *= 2.0f; } return -x + (float)k; }"
    )
    assert isinstance(tree, c_syntax.CFunction)
    assert tree.contract
    declared, loop, result = tree.body
    assert isinstance(declared, c_syntax.Declare)
    assert isinstance(declared.value, c_syntax.Ternary)
    assert isinstance(loop, c_syntax.CLoop)
    assert not c_syntax.depends_on_data(loop)
    assert c_syntax.assigned_in(loop.body) == {"x"}
    assert isinstance(result, c_syntax.Return)
    assert c_syntax.names_in(result.value) == {"x", "k"}


def test_a_loop_that_depends_on_values_is_done_lane_by_lane() -> None:
    value = Apply("gcd", (Name("x0", "u32"), Name("x1", "u32")), "u32")
    text = module_text(mapped(value, [("uint32", "u32"), ("uint32", "u32")], "uint32", 64, 8), native())
    assert text.count("call i32 @gcd_u32(") == 8
    assert "define internal i32 @gcd_u32(i32 %x, i32 %y) noinline" in text


def test_a_function_is_written_once() -> None:
    value = Apply("exp", (Apply("exp", (Name("x0", "f64"),), "f64"),), "f64")
    text = module_text(mapped(value, [("float64", "f64")], "float64", 64, 8), native())
    assert text.count("define internal <8 x double> @exp_f64x8(") == 1
    assert text.count("call <8 x double> @exp_f64x8(") == 2


def test_only_our_own_functions_round_a_product_and_a_sum_once() -> None:
    x = Name("x0", "f64")
    value = Apply("add", (Apply("multiply", (x, x), "f64"), x), "f64")
    text = module_text(mapped(value, [("float64", "f64")], "float64", 64, 8), native())
    assert "fmuladd" not in text
    for flag in ("fast", "reassoc", "contract", "nnan", "inbounds", "nuw"):
        assert flag not in text


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("exponent", [1.5, -0.5, 4.0])
def test_known_powers_are_those_of_pow(exponent: float, dtype: DType) -> None:
    type = COMPUTE[dtype]
    values = np.concatenate([special_floats(type), random_floats(type, 4000, 1)])
    nests = mapped(
        Apply("power", (Name("x0", type), Literal(exponent, type)), type), [(dtype, type)], dtype, values.size, 8
    )
    code = Code(nests)
    assert "@power_f" not in code.text
    out = np.zeros_like(values)
    code.run([values, out])
    with np.errstate(all="ignore"):
        wanted = np.power(values.astype(np.float64), exponent).astype(dtype)
        same = (out == wanted) & (np.signbit(out) == np.signbit(wanted)) | (np.isnan(out) & np.isnan(wanted))
        near = np.abs(out - wanted) <= 2 * np.spacing(np.abs(wanted))
    assert (same | near).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_rest_of_a_division_is_exact_however_large_the_quotient_is(dtype: DType) -> None:
    type = COMPUTE[dtype]
    draw, count = np.random.default_rng(3), 40_000
    y = draw.uniform(1, 2, count) * np.exp2(draw.integers(-20, 20, count))
    x = (y * np.rint(np.exp2(draw.uniform(0, 60, count)))).astype(dtype)
    y = y.astype(dtype)
    # Also where the quotient is next to a whole number.
    x = np.where(draw.random(count) < 0.5, np.nextafter(x, draw.choice([-np.inf, np.inf], count).astype(dtype)), x)
    x *= draw.choice([-1, 1], count).astype(dtype)
    code = Code(mapped(Apply("fmod", (Name("x0", type), Name("x1", type)), type), [(dtype, type)] * 2, dtype, count, 8))
    out = np.zeros_like(x)
    code.run([x, y, out])
    assert (out == np.fmod(x, y)).all()
    assert (np.signbit(out) == np.signbit(x)).all()
