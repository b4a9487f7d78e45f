"""Kernels compile for devices that are not here: Clang's targets, and the Tint of a browser.

A sample: `scripts/kernel-compilers` compiles everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.webgpu.pipelines import with_subgroups_enabled, without_subgroups_enabled
from tests.engines.custom_programs import kernel_program
from tests.support.kernel_compilers import (
    CLANG_TARGETS,
    ClangTarget,
    Text,
    clang_program,
    clang_refusal,
    compile_opencl,
    every_target,
    extensions,
    generated,
    is_standard,
    read,
    sample,
    text_of,
    tint_of_chromium,
    write,
)
from tests.support.kernel_programs import programs

#: Each stands for a kind of kernel: fused chains, sums by lanes, products, sorts, and so on.
SAMPLED = (
    *("matmul float32 65 127 33", "matmul float16 1 500 300", "sort float16", "sums float32", "sums int64"),
    *("running rows float32", "search float32", "extremes float32", "fft complex64 1000", "attention 17 32 causal"),
    *("example edges", "gather float16", "convolution (2, 3, 32, 32) (8, 3, 3, 3)", "seed 0 with attention", "seed 4"),
)
#: The devices whose texts PoCL and lavapipe never see.
OPENCL_DEVICES = ("opencl-card", "opencl-least")
WGSL_DEVICES = ("wgsl-browser", "wgsl-least", "wgsl-narrow")
COUNT = 25

OWN_OPENCL = """
__kernel void mine(__global const float *x, __global float *y) {
    float last[3];
    __local float part[64];
    struct { int many; float4 four; } pair;
    int i = get_global_id(0);
    part[get_local_id(0)] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    last[i % 3] = part[63 - get_local_id(0)];
    y[i] = last[0] + pair.four.x;
}
"""
OWN_WGSL = """
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn mine(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] = subgroupAdd(x[id.x + 1u]);
}
"""


@cache
def texts(devices: tuple[str, ...], own: str) -> list[Text]:
    """A sample of what these devices would compile, and a user's kernel with its guards."""
    numbers = [number for number, (name, _) in enumerate(programs()) if name in SAMPLED]
    assert len(numbers) == len(SAMPLED)
    target = every_target()[devices[0]]
    x = np.zeros(64, np.float32)
    users = schedule(kernel_program(own, [x], [(64,)], (1, 1, 1)), target).kernels
    chosen = [text for text in generated(numbers, devices) if is_standard(text) or text.dialect == "opencl"]
    return [*sample(chosen, COUNT), *(text_of(kernel, target.dialect) for kernel in users)]


def problems(answers: list[tuple[Text, str | None]]) -> list[str]:
    return [f"{refused}\n{text.source}" for text, refused in answers if refused is not None]


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize("target", CLANG_TARGETS, ids=[target.name for target in CLANG_TARGETS])
def test_opencl_c_compiles_for_cards_that_are_not_here(target: ClangTarget) -> None:
    answers = compile_opencl(texts(OPENCL_DEVICES, OWN_OPENCL), clang_program(), target)
    assert len(answers) > COUNT
    assert not problems([(text, refused) for text, refused in answers])


WRONG = {
    "a type's name": "__kernel void k(__global int *x) { int half = 1; x[0] = half; }",
    "not C99": "__kernel void k(__global int *x) { int a[2] = {}; x[0] = a[1]; }",
    "double without an extension": "__kernel void k(__global float *x) { x[0] = x[0] * 1.5; }",
    "an extension without its pragma": (
        "__kernel void k(__global volatile ulong *x) { atom_add(x, 1ul); }  // cl_khr_int64_base_atomics"
    ),
    "OpenCL 2.0": "__kernel void k(__global int *x) { int *p = x; *p = 1; }",
}


@pytest.mark.parametrize("source", WRONG.values(), ids=WRONG)
def test_what_is_not_strict_opencl_c_is_refused(source: str) -> None:
    assert clang_refusal(clang_program(), CLANG_TARGETS[2], Text("opencl", source)) is not None


def test_extensions_are_those_of_the_text() -> None:
    assert extensions("__kernel void k(__global double2 *x) {}") == ("cl_khr_fp64",)
    assert extensions("#pragma OPENCL EXTENSION cl_khr_fp16 : enable\nhalf x;") == ("cl_khr_fp16",)
    assert extensions("float x;") == ()


@pytest.mark.full
def test_wgsl_compiles_with_tint_and_what_is_wrong_does_not() -> None:
    wrong = [
        Text("wgsl", "@compute @workgroup_size(1) fn k() { let x = 1.0 / 0.0; }"),
        Text("wgsl", "@compute @workgroup_size(1) fn k(@builtin(local_invocation_index) i: u32) { if (i < 1u) {"
             " workgroupBarrier(); } }"),
    ]  # fmt: skip
    right = [text for text in texts(WGSL_DEVICES, OWN_WGSL) if "enable f16;" not in text.source]
    said = tint_of_chromium([*right, *wrong], pipelines=0).answers
    assert len(right) > COUNT // 2
    assert any("subgroup" in text.source for text in right)
    assert not problems([(text, refused) for text, refused in said[: len(right)]])
    assert all(refused is not None for _, refused in said[len(right) :])


# The texts themselves


def test_a_sample_has_the_most_different_texts_first() -> None:
    alike = [Text("wgsl", f"let x = {number};") for number in range(5)]
    other = Text("wgsl", "let x = 1;\nreturn;\n")
    chosen = sample([*alike, other], 2)
    assert chosen[0] == other
    assert len(sample([*alike, other], 10)) == 6


def test_64_bit_numbers_are_not_of_the_standard() -> None:
    assert not is_standard(Text("wgsl", "let x = 1lu;"))
    assert not is_standard(Text("wgsl", "var<storage> x: array<f64>;"))
    assert is_standard(Text("wgsl", "let x = 1u + 0x1fu; let all = 1.0e3f;"))


def test_texts_are_written_and_read(tmp_path: Path) -> None:
    some = [Text("opencl", "one", "k"), Text("wgsl", "two", "k", ("storage",), "original")]
    write(tmp_path, some)
    assert sorted(read(tmp_path), key=lambda text: text.source) == some


def directives() -> Iterator[tuple[str, str, str]]:
    used = "fn k() { let x = subgroupAdd(1u); }"
    yield used, f"enable subgroups;\n{used}", used
    enabled = f"enable f16;\n  enable  subgroups ;\n{used}"
    yield enabled, enabled, f"enable f16;\n{' ' * 21}\n{used}"
    builtin = "fn k(@builtin(subgroup_size) n: u32) {}"
    yield builtin, f"enable subgroups;\n{builtin}", builtin
    plain = "fn k() { let subgroups = 1u; }"
    yield plain, plain, plain


@pytest.mark.parametrize(
    ("source", "standard", "naga"), list(directives()), ids=["used", "enabled already", "built-in", "not used"]
)
def test_subgroups_are_enabled_where_that_is_wanted(source: str, standard: str, naga: str) -> None:
    assert with_subgroups_enabled(source) == standard
    assert without_subgroups_enabled(source) == naga
