"""The functions of both dialects against NumPy, on lavapipe and on PoCL."""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
import pytest

from anygpu.engines.codegen.functions import library
from anygpu.engines.codegen.functions.library import CANDIDATES, call, definitions, vector_call
from anygpu.engines.codegen.functions.source import Definition, defined, definition, in_wgsl
from anygpu.engines.codegen.target import ComputeType, Dialect, Target
from anygpu.errors import InvalidProgram
from anygpu.program.functions import BINARY, UNARY
from tests.codegen.function_cases import FLOATS, INTEGERS, Case, cases, order_cases, points
from tests.codegen.function_errors import TARGETS, outcomes
from tests.codegen.functions_on_devices import DIALECTS, evaluate, run_on_webgpu, time_on_opencl

#: In eps, relative to max(|result|, 1). The project publishes 32 for float32 and 64 for float64.
TOLERANCE = 4.0

#: What dialects print as operators, or take apart into real and imaginary parts.
OPERATORS = {"negative", "invert", "real", "imag", "conj", "complex", "add", "subtract", "multiply", "divide"}
OPERATORS |= {"bitwise_and", "bitwise_or", "bitwise_xor"}
OPERATORS |= {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}


def _kind(case: Case) -> str:
    return "casts" if case.fn.startswith("cast_") else "floats" if case.type in FLOATS else "integers"


@pytest.mark.sampled(gate=6)
@pytest.mark.parametrize("kind", ["floats", "integers", "casts"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_function_means_what_numpy_means(dialect: Dialect, kind: str) -> None:
    failures = []
    for each in outcomes(dialect, [case for case in cases() if _kind(case) == kind]):
        if each.wrong.any():
            failures.append(f"{each.wrong.sum()} wrong: {each.at(int(each.wrong.argmax()))}")
        elif each.worst > (0 if each.case.exact else TOLERANCE):
            failures.append(f"{each.worst:.1f} eps: {each.at(int(each.error.argmax()))}")
    assert not failures, "\n".join(failures)


#: Compiling is what takes the time: these call, between them, nearly everything that there is for vectors.
_FOR_VECTORS = (
    "power",
    "tan",
    "atan2",
    "asinh",
    "acosh",
    "sinh",
    "erf",
    "cbrt",
    "hypot",
    "acos",
    "log10",
    "floor_divide",
)


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize(("type", "width"), [("f32", 16), ("f64", 8), ("f32", 2)])
def test_functions_for_vectors_give_the_same_as_single_ones(type: ComputeType, width: int) -> None:
    chosen = [
        case for case in cases() if case.fn in (_FOR_VECTORS if width > 2 else ("sin", "log1p")) and case.type == type
    ]
    for each in outcomes("opencl", chosen, 1025, width=width):
        assert not each.wrong.any(), each.at(int(each.wrong.argmax()))
        assert each.worst <= TOLERANCE, each.at(int(each.error.argmax()))


def test_only_some_functions_take_vectors() -> None:
    assert vector_call("opencl", "exp", "f32", TARGETS["opencl"], 8) == "exp_f32x8"
    assert vector_call("opencl", "floor", "f64", TARGETS["opencl"], 4) == "floor"
    assert vector_call("opencl", "cast_f32", "i32", TARGETS["opencl"], 4) == "convert_float4"
    assert vector_call("opencl", "gcd", "i32", TARGETS["opencl"], 4) is None
    assert vector_call("opencl", "fmod", "f64", TARGETS["opencl"], 4) is None
    assert vector_call("wgsl", "floor", "f32", TARGETS["wgsl"], 4) == "floor"
    assert vector_call("wgsl", "exp", "f32", TARGETS["wgsl"], 4) is None
    text = definitions("opencl", ["exp_f32x8", "exp_f32"])
    assert "float8 exp_f32x8(float8 x)" in text
    assert "float exp_f32(float x)" in text


@pytest.mark.parametrize("dialect", DIALECTS)
def test_order_keys_sort_as_numpy_does(dialect: Dialect) -> None:
    for case in order_cases():
        (values,) = points(case, 1025)
        name = call(dialect, case.fn, case.type, TARGETS[dialect])
        (keys,) = evaluate(dialect, [(name, case.result)], case.arguments, [values])
        assert (np.unique(keys, return_inverse=True)[1] == case.reference(values)).all(), case.type


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("type", FLOATS)
def test_infinity_and_nan_can_be_spelt(dialect: Dialect, type: ComputeType) -> None:
    functions = [(call(dialect, fn, type, TARGETS[dialect]), type) for fn in ("infinity", "nan")]
    infinity, nan = evaluate(dialect, functions, (), [np.zeros(3, np.float32)])
    assert (infinity == np.inf).all()
    assert np.isnan(nan).all()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_function_of_a_program_has_a_name(dialect: Dialect) -> None:
    tested = {(case.fn, case.type) for case in cases()}
    for fn in {*UNARY, *BINARY} - OPERATORS:
        for type in (*INTEGERS, *FLOATS):
            if (fn, type) in tested:
                assert call(dialect, fn, type, TARGETS[dialect])
            else:
                with pytest.raises(InvalidProgram, match=fn):
                    call(dialect, fn, type, TARGETS[dialect])
        assert any(name == fn for name, _ in tested), f"{fn} is not tested for any type"


def all_of(dialect: Dialect) -> list[Definition]:
    return [definition(dialect, name) for name in defined(dialect)]


#: Statements of C, of an `int n`, a `uint u` and a `float x`, and what they are in WGSL.
RESPELLED = {
    "return x < 0.0f ? x : 1.0f;": "return select(1.0, x, x < 0.0);",
    "const int far = x > 2.0f; return far ? -x : x;": "let far = x > 2.0; return select(x, -x, far);",
    "const int back = x < 0.0f; return (float)(n + (back & 1));": (
        "let back = x < 0.0; return f32(n + select(0, 1, back));"
    ),
    "return as_float((u & 1u) << n);": "return bitcast<f32>((u & 1u) << u32(n));",
    "return (float)((uint)n >> (u - 1));": "return f32(bitcast<u32>(n) >> (u - 1));",
    "return (x - 1.0f) - (x + 2.0f) * x;": "return x - 1.0 - (x + 2.0) * x;",
    "float y = x; if (isnan(x) || n == 0) { y = fabs(copysign(y, 2.0f)); } return y;": (
        "var y = x; if (isnan_f32(x) || n == 0) { y = abs(copysign_f32(y, 2.0)); } return y;"
    ),
    "float y = 1.0f; for (int i = 0; i < 3; i++) { y *= x; } return y;": (
        "var y: f32 = 1.0; for (var i: i32 = 0; i < 3; i = i + 1) { y = y * x; } return y;"
    ),
    "uint left = 0x8ul == 1 ? u : 1u; while (left & 2) { left >>= 1; } return convert_float(left);": (
        "var left = select(1u, u, 0x8lu == 1); while ((left & 2) != 0) { left = left >> 1; } return f32(left);"
    ),
    "const struct Pair_f32 two = {x, rint(x)}; return two.y;": "let two = vec2<f32>(x, round(x)); return two.y;",
}


@pytest.mark.parametrize("body", RESPELLED)
def test_how_c_is_respelled_in_wgsl(body: str) -> None:
    text = in_wgsl(f"// Note.\nstatic float f(int n, uint u, float x) {{ {body} }}", lambda name: "float")
    expected = f"// Note. fn f(n: i32, u: u32, x: f32) -> f32 {{ {RESPELLED[body]} }}"
    assert " ".join(text.split()) == expected


@pytest.mark.parametrize("body", ["return x * n;", "return n;", "const uint v = n; return x;", "return x < u ? x : 1;"])
def test_what_c_would_convert_silently_is_refused_in_wgsl(body: str) -> None:
    with pytest.raises(SyntaxError, match="WGSL"):
        in_wgsl(f"static float f(int n, uint u, float x) {{ {body} }}", lambda name: "float")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_definition_is_there_once_and_after_what_it_uses(dialect: Dialect) -> None:
    text = definitions(dialect, defined(dialect))
    places = {each.name: text.index(each.text) for each in all_of(dialect)}
    for each in all_of(dialect):
        assert text.count(each.text) == 1
        assert all(places[used] < places[each.name] for used in each.uses)


def test_definitions_have_what_is_asked_for_and_nothing_else() -> None:
    assert definitions("wgsl", ["floor", "sqrt"]) == ""
    text = definitions("wgsl", ["tanh_f32", "isnan_f32"])
    assert text.count("fn isnan_f32(") == 1
    assert "f64" not in text
    assert "//:" not in text


def test_what_is_of_32_bits_needs_nothing_wider() -> None:
    """Devices without float64, and WebGPU devices without int64, must be able to compile it."""
    for name in defined("wgsl"):
        if "64" not in name:
            assert not re.findall(r"[iuf]64", definitions("wgsl", [name])), name
    for name in defined("opencl"):
        if "f64" not in name:
            text = re.sub(r"//.*", "", definitions("opencl", [name]))
            assert "double" not in text, name
            assert not re.findall(r"\b\d+\.\d+(?:e[-+]?\d+)?(?![\w.])", text), name


def test_a_word_that_was_not_replaced_would_be_seen() -> None:
    for dialect in DIALECTS:
        for each in all_of(dialect):
            code = re.sub(r"//.*|#pragma.*", "", each.text)
            left = re.findall(r"\b[A-Z][A-Z0-9]*\b|_[A-Z]\b|#", code)
            assert not left, (each.name, left)


def test_the_files_are_part_of_the_package() -> None:
    names = {file.name for file in files("anygpu.engines.codegen.functions").iterdir()}
    assert {"arithmetic.cl", "bits.cl", "casts.cl", "exponentials.cl", "integers.cl", "trigonometry.cl"} <= names


def test_trusted_functions_are_called_by_their_own_name() -> None:
    plain = Target(dialect="wgsl")
    trusting = Target(dialect="wgsl", trusted=("exp_f32", "power_f32"))
    assert call("wgsl", "exp", "f32", plain) == "exp_f32"
    assert call("wgsl", "exp", "f32", trusting) == "exp"
    assert call("wgsl", "power", "f32", trusting) == "pow"
    assert call("wgsl", "exp", "f64", trusting) == "exp_f64"


def test_where_a_builtin_is_made_of_the_same_instructions_the_shorter_function_is_called() -> None:
    trusted = ("sqrt_f32", "tanh_f32")
    card, processor = (Target(dialect="wgsl", trusted=trusted, emulated=each) for each in (False, True))
    assert call("wgsl", "tanh", "f32", card) == "tanh"
    assert call("wgsl", "tanh", "f32", processor) == "tanh_f32"
    assert call("wgsl", "sqrt", "f32", processor) == "sqrt"


def test_what_is_trusted_on_a_real_device_is_within_the_published_tolerance() -> None:
    target = TARGETS["wgsl"]
    names = library.trusted(target, run_on_webgpu(library.measurement(target)))
    # What holds for lavapipe: good square roots and sines, but pow and asin far from what we publish.
    assert {"sqrt_f32", "sqrt_f64", "sin_f32", "cos_f32"} <= set(names)
    assert not {"power_f32", "asin_f32", "minimum_f32", "sign_f32"} & set(names)
    trusting = Target(dialect="wgsl", features=target.features, trusted=names)
    chosen = [case for case in cases() if f"{case.fn}_{case.type}" in names]
    for each in outcomes("wgsl", chosen, target=trusting):
        assert not each.wrong.any(), each.at(int(each.wrong.argmax()))
        published = 32 if each.case.type == "f32" else 64
        assert each.error.max() <= published, each.at(int(each.error.argmax()))


def test_a_device_that_is_wrong_anywhere_is_not_trusted() -> None:
    target = Target(dialect="wgsl")
    with np.errstate(all="ignore"):
        perfect = []
        for trial in library.trials(target):
            rows = [library.reference(name, trial.points).astype(np.float32) for name in trial.names]
            perfect.append(np.array(rows))
    assert set(library.trusted(target, perfect)) == {name for name in CANDIDATES["wgsl"] if name.endswith("f32")}
    row = library.trials(target)[0].names.index("exp_f32")
    spoilt = [each.copy() for each in perfect]
    spoilt[0][row, 17] *= 1 + 40 * 2.0**-23
    assert "exp_f32" not in library.trusted(target, spoilt)
    assert "log_f32" in library.trusted(target, spoilt)


def test_on_a_processor_our_functions_win_the_race() -> None:
    builtin, ours = (min(seconds) for seconds in time_on_opencl(library.race(), 3))
    assert library.faster(builtin, ours) == ()
    assert "power_f64" in library.faster(1.0, 2.0)
    trusting = Target(dialect="opencl", trusted=library.faster(1.0, 2.0))
    assert call("opencl", "power", "f32", trusting) == "pow"
    assert vector_call("opencl", "power", "f32", trusting, 8) == "pow"
    assert call("opencl", "power", "f32", TARGETS["opencl"]) == "power_f32"


def test_nothing_is_measured_where_the_dialect_promises_accuracy() -> None:
    assert library.trials(Target(dialect="opencl")) == ()
    assert {trial.type for trial in library.trials(Target(dialect="wgsl"))} == {"f32"}
