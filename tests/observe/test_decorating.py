"""Decorators are written into a copy of a script, and nothing else of it changes."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from anygpu.calls.offload import Offloaded
from anygpu.observe import script
from anygpu.observe.script import decorated

SCRIPT = b'''#!/usr/bin/env python
"""What it does."""
from __future__ import annotations

import sys
import numpy as np   # odd   spacing stays


@wrapped
@again(1)
def first(x):  return np.sqrt( x )

class Model:
    @staticmethod
    def second(x):
        def third(y):
            return y*2
        return third(x)
'''


def test_the_import_comes_after_what_must_be_first_and_the_decorator_directly_above_def() -> None:
    made, found = decorated(SCRIPT, [9, 14])
    assert found == [9, 14]
    assert made == SCRIPT.replace(b"import sys", b"import anygpu\nimport sys").replace(
        b"def first", b"@anygpu.offload\ndef first"
    ).replace(b"    def second", b"    @anygpu.offload\n    def second")
    compile(made, "copy", "exec")


def test_nested_functions_are_found_by_their_line() -> None:
    made, found = decorated(SCRIPT, [16])
    assert found == [16]
    assert b"        @anygpu.offload\n        def third(y):" in made


def test_line_ends_and_encodings_stay() -> None:
    source = "# -*- coding: latin-1 -*-\r\nimport numpy\r\ndef f(x):\r\n    return x  # é\r\n".encode("latin-1")
    made, found = decorated(source, [3])
    assert found == [3]
    assert made == source.replace(b"import numpy\r\n", b"import anygpu\r\nimport numpy\r\n").replace(
        b"def f", b"@anygpu.offload\r\ndef f"
    )


@pytest.mark.parametrize("lines", [[], [1], [999]])
def test_a_script_without_such_functions_stays_as_it_is(lines: list[int]) -> None:
    assert decorated(SCRIPT, lines) == (SCRIPT, [])


def test_a_script_without_imports() -> None:
    made, _ = decorated(b"def f(x):\n    return x\n", [1])
    assert made == b"import anygpu\n@anygpu.offload\ndef f(x):\n    return x\n"


@pytest.mark.parametrize(
    "before",
    [
        "PAGE = 'x\x0cy\x0cz'\n",
        "\x0c\n\x0c\n",
        "# a \u2028 b \x85 c \x1c d \x0b\n",
        "TEXT = '\u2029\x1d\x1e'\n",
        "x = 1\r\ny = 2\rz = 3\n",
    ],
)
def test_lines_are_pythons(before: str) -> None:
    """What `str.splitlines` takes for a line end is part of a line for Python."""
    source = f"import numpy\n{before}def a(x):\n    return x\nclass A:\n    def b(x):\n        return x\n"
    [line] = [
        each.lineno for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef) and each.name == "b"
    ]
    made, found = decorated(source.encode(), [line])
    assert found == [line]
    assert made.decode() == f"import anygpu\n{source}".replace("    def b", "    @anygpu.offload\n    def b")


def test_the_import_is_above_the_function() -> None:
    """Also if the first import at the top level is below it."""
    source = b"""try:
    import math
except ImportError:
    raise SystemExit(1)
def heavy(x):
    return math.sqrt(x)
import sys
value = heavy(4.0)
"""
    made, found = decorated(source, [5])
    assert found == [5]
    assert made.startswith(b"import anygpu\ntry:")
    names: dict[str, Any] = {}
    exec(compile(made, "copy", "exec"), names)
    assert names["value"] == 2.0


@pytest.mark.parametrize(
    "source",
    [
        b'"""What it does."""; from __future__ import annotations; import sys\ndef f(x):\n    return x\n',
        b"from __future__ import annotations; import sys\nX = 1\n\ndef f(x):\n    return x\n",
    ],
)
def test_statements_on_one_line_stay_together(source: bytes) -> None:
    line = source[: source.index(b"def f")].count(b"\n") + 1
    made, found = decorated(source, [line])
    assert found == [line]
    assert made.startswith(source[: source.index(b"\n") + 1] + b"import anygpu\n")
    compile(made, "copy", "exec")


def test_a_def_on_a_continued_line() -> None:
    made, found = decorated(b"x = 1; \\\ny = 2\n\\\ndef f(x):\n    return x\n", [4])
    assert found == [4]
    names: dict[str, Any] = {}
    exec(compile(made, "copy", "exec"), names)
    assert isinstance(names["f"], Offloaded)


def test_a_copy_with_any_other_change_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "source_lines", str.splitlines)
    source = b"import numpy\nPAGE = 'a\x0cb'\ndef f(x):\n    return x\ndef g(x):\n    return x\n"
    assert decorated(source, [5]) == (source, [])
