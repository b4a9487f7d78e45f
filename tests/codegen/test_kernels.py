"""The texts of kernels: the same as ever, readable, and made of nothing that a dialect does not have."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.driver import why_not
from anygpu.program.graph import Program
from tests.codegen import golden
from tests.codegen.planning import CARD, PROCESSOR, plan, spec
from tests.support.program_strategies import programs

TEXTS = golden.texts()


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_kernels_are_what_they_were(name: str) -> None:
    kept = (golden.FOLDER / name).read_text()
    assert TEXTS[name] == kept, "if this is meant: python -m tests.codegen.golden --update, and read the difference"


def test_no_file_is_left_over() -> None:
    assert sorted(path.name for path in golden.FOLDER.iterdir()) == sorted(TEXTS)


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_texts_are_readable(name: str) -> None:
    text = TEXTS[name]
    assert "\t" not in text
    assert "\n\n\n" not in text
    assert not re.search(r"[ \t]+$", text, re.MULTILINE)
    assert "$" not in text, "a placeholder was not filled"
    assert "None" not in text
    depth = 0
    for line in text.splitlines():
        code = line.split("//")[0]
        depth += code.count("{") - code.count("}")
        assert depth >= 0
    assert depth == 0


def test_an_input_is_called_what_the_program_calls_it() -> None:
    (kernel,) = plan(lambda x, y: x + y, spec(7), spec(7)).kernels
    assert "input_a" in kernel.source
    assert "input_b" in kernel.source
    assert kernel.name.startswith("add")
    assert f"fn {kernel.name}(" in kernel.source


@settings(max_examples=20)
@given(programs())
def test_a_kernel_declares_what_it_binds(program: Program) -> None:
    if why_not(program, CARD, "device"):
        return
    for kernel in schedule(program, CARD).kernels:
        numbers = re.findall(r"@group\(0\) @binding\((\d+)\)", kernel.source)
        assert numbers == [str(each) for each in range(len(kernel.bindings) + bool(kernel.numbers))]
        declared = re.findall(r"var<storage, (\w+)>", kernel.source)
        for binding, access in zip(kernel.bindings, declared, strict=True):
            assert access == "read_write" if binding.access != "read" else access in ("read", "read_write")
        assert f"@workgroup_size({kernel.group_size})" in kernel.source
        for number in kernel.numbers:
            assert f"numbers.{number}" in kernel.source
    for kernel in schedule(program, PROCESSOR).kernels:
        (head,) = re.findall(rf"\bvoid {kernel.name}\((.*?)\)\s*\{{", kernel.source, re.DOTALL)
        assert head.count("__global") == len(kernel.bindings)
        assert head.count("const uint") + head.count(" uint ") >= len(kernel.numbers)


@settings(max_examples=15)
@given(programs())
def test_names_are_declared_before_they_are_used(program: Program) -> None:
    if why_not(program, CARD, "device"):
        return
    for kernel in schedule(program, CARD).kernels:
        defined = set(re.findall(r"\b(?:fn|struct) (\w+)", kernel.source))
        own = set(re.findall(r"\b((?:load|store|find|runtime)_\w+)\(", kernel.source))
        assert own <= defined, own - defined
