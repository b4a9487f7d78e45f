"""Words, brackets and constant expressions of kernels."""

from __future__ import annotations

import pytest

from anygpu.engines.codegen.custom.preprocessing import preprocessed, with_defines
from anygpu.engines.codegen.custom.reflected import evaluate
from anygpu.engines.codegen.custom.tokens import Edit, Unreadable, edited, partners, tokens_of


def texts(source: str, language: str = "opencl") -> list[str]:
    return [token.text for token in tokens_of(source, language)][:-1]  # type: ignore[arg-type]


def expanded(source: str) -> str:
    return " ".join(token.text for token in preprocessed(source).tokens[:-1])


def value(text: str, **known: float) -> object:
    return evaluate(tokens_of(text, "opencl")[:-1], known)


def test_words_know_their_place() -> None:
    token = tokens_of("a\n  /* b\n c */ name2 = 0x1Fu;", "wgsl")[1]
    assert (token.text, token.line, token.column) == ("name2", 3, 7)


def test_comments_nest_in_wgsl_and_not_in_c() -> None:
    assert texts("a /* x /* y */ z */ b", "wgsl") == ["a", "b"]
    assert texts("a /* x /* y */ b") == ["a", "b"]
    assert texts("a // b \\\n c\nd") == ["a", "d"]
    assert texts("a // b \\\n c\nd", "wgsl") == ["a", "c", "d"]


def test_marks_are_as_long_as_the_language_has_them() -> None:
    assert texts("a>>=b->c&&&d") == ["a", ">>=", "b", "->", "c", "&&", "&", "d"]
    assert texts("array<vec4<f32>>=x", "wgsl") == ["array", "<", "vec4", "<", "f32", ">", ">", "=", "x"]


def test_numbers_and_texts_are_one_word() -> None:
    assert texts("1e-5f+0x1p-3 .5 'a' \"b // c\" 1.") == ["1e-5f", "+", "0x1p-3", ".5", "'a'", '"b // c"', "1."]


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [("a /* b", 1, 3), ('x = "abc\n', 1, 5), ("a\n  (b]", 2, 5), ("{\n(a)", 1, 1), ("a )", 1, 3), ("a § b", 1, 3)],
)
def test_what_is_never_closed_has_its_place(source: str, line: int, column: int) -> None:
    with pytest.raises(Unreadable) as caught:
        partners(tokens_of(source, "opencl"))
    assert caught.value.at is not None
    assert (caught.value.at.line, caught.value.at.column) == (line, column)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(Unreadable, match="nested"):
        partners(tokens_of("(" * 300 + ")" * 300, "wgsl"))


def test_edits_keep_their_order() -> None:
    assert edited("abc", [Edit(1, 2, "X"), Edit(1, 1, "<"), Edit(3, 3, ">")]) == "a<Xc>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 << 4) | 3", 19),
        ("-7 / 2", -3),
        ("-7 % 4", -3),
        ("N * sizeof_ - 1u", 31),
        ("0x10 == 16 ? 2 : 3", 2),
        ("!0 && 3 > 2", True),
        ("1.5f * 2", 3.0),
        ("(uint)3.9", 3),
        ("min(4, 9) + max(1, 2)", 6),
        ("010", 8),
    ],
)
def test_constant_expressions(text: str, expected: object) -> None:
    assert value(text, N=16, sizeof_=2) == expected


@pytest.mark.parametrize(
    "text", ["", "1 +", "x", "1 / 0", "1 << 64", "(1", "1 2", "2.0 % 1.0", "1 << 63 << 63", "f(1)"]
)
def test_what_is_no_constant(text: str) -> None:
    with pytest.raises(Unreadable):
        value(text)


def test_macros_are_expanded_as_a_compiler_does() -> None:
    assert expanded("#define A B\n#define B (A + 1)\nA") == "( A + 1 )"
    assert expanded("#define F(x, y) x[y]\nF(a, F(b, 1))") == "a [ b [ 1 ] ]"
    assert expanded("#define J(a, b) a##b\nJ(x, 1) J(x,\n 2)") == "x1 x2"
    assert expanded("#define F(x) x\nF F (1)") == "F 1"
    assert expanded("#define F() 1\nF()") == "1"
    assert expanded("#define A 1\n#undef A\nA") == "A"
    assert expanded("#define A \\\n 1 + \\\n 2\nA") == "1 + 2"


def test_conditions_choose_their_lines() -> None:
    source = "#if N > 2 && defined(M)\na\n#elif defined M\nb\n#else\nc\n#endif\nd"
    assert expanded("#define N 3\n#define M\n" + source) == "a d"
    assert expanded("#define M 1\n" + source) == "b d"
    assert expanded(source) == "c d"
    assert expanded("#ifdef X\n#if 1/0\n#endif\n#else\na\n#endif\n#ifndef X\nb\n#endif") == "a b"
    assert expanded("#pragma unroll\nfor") == "#pragma unroll for"


def test_words_of_macros_are_at_the_place_of_their_use() -> None:
    token = preprocessed("#define A x + y\n\n  A").tokens[2]
    assert (token.text, token.line, token.column) == ("y", 3, 3)


@pytest.mark.parametrize(
    "source",
    [
        "#include <x.h>",
        "#if 1\n",
        "#endif",
        "#error no",
        "#define F(x) x\nF(1, 2)",
        "#define F(x) x\nF(1",
        "#define S(x) #x\nS(a)",
        "#define\n",
        "#nothing",
        "#if\n#endif",
        "a # b",
    ],
)
def test_directives_that_are_refused(source: str) -> None:
    with pytest.raises(Unreadable) as caught:
        preprocessed(source)
    assert caught.value.at is not None


def test_a_macro_that_grows_without_end_is_refused() -> None:
    lines = ["#define A0 x x"] + [f"#define A{n} A{n - 1} A{n - 1}" for n in range(1, 40)]
    with pytest.raises(Unreadable, match="too long"):
        preprocessed("\n".join([*lines, "A39"]))


def test_other_values_for_defines() -> None:
    source = "#define N 16 // as it was\n#define S 0.5f\n#define F(x) x\n#define U 2u\n"
    assert preprocessed(with_defines(source, {"N": 32, "S": 2, "U": 4})).constants == {"N": 32, "S": 2.0, "U": 4}
    assert "#define S 2.0f" in with_defines(source, {"S": 2})
    assert "#define N (-1) // as it was" in with_defines(source, {"N": -1})
    assert with_defines(source, {"N": 1}).count("\n") == source.count("\n")
    for wrong in ({"M": 1}, {"F": 1}, {"S": float("nan")}, {"N": 1 << 70}):
        with pytest.raises(Unreadable):
            with_defines(source, wrong)
