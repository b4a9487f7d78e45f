"""Decorators are written into a copy of a script, and nothing else of it changes."""

from __future__ import annotations

import pytest

from anygpu.observe.advising.decorating import decorated

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
