"""Kernels that mean no harm, and what becomes of their text when it is mutated: for `benchmarks.hostile_kernels`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from anygpu.program.ops.custom import Language


class Good(NamedTuple):
    """A kernel that is right, with what it means."""

    language: Language
    source: str
    reference: Callable[..., Any]
    updates: tuple[str, ...] = ()


_WGSL_SCALE = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> alpha: f32;

@compute @workgroup_size(64)
fn scale(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&a)) {
        y[id.x] = alpha * a[id.x];
    }
}
"""

_WGSL_SUMS = """
override WIDTH: u32 = 64;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
var<workgroup> part: array<f32, 64>;

@compute @workgroup_size(64)
fn dot(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) me: vec3<u32>) {
    var sum = 0.0;
    for (var i = me.x; i < arrayLength(&a); i += WIDTH) {
        sum += a[i] * b[i];
    }
    part[me.x] = sum;
    workgroupBarrier();
    for (var step = WIDTH / 2u; step > 0u; step = step / 2u) {
        if (me.x < step) {
            part[me.x] += part[me.x + step];
        }
        workgroupBarrier();
    }
    y[id.x] = part[0];
}
"""

_WGSL_UPDATE = """
struct Numbers { first: i32, step: i32 }
@group(0) @binding(0) var<storage, read> at: array<i32>;
@group(0) @binding(1) var<storage, read_write> x: array<i32>;
@group(0) @binding(2) var<uniform> numbers: Numbers;

fn place(i: u32) -> i32 {
    return numbers.first + numbers.step * at[i];
}

@compute @workgroup_size(32, 1, 1)
fn put(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if (i >= arrayLength(&x)) { return; }
    let p = place(i);
    if (p >= 0 && p < i32(arrayLength(&x))) {
        x[i] = x[i] + select(1, 2, p > 3);
    }
}
"""

_OPENCL_SCALE = """
__kernel void scale(__global const float *a, __global float *y, float alpha, int n) {
    int i = get_global_id(0);
    if (i < n) {
        y[i] = alpha * a[i];
    }
}
"""

_OPENCL_SUMS = """
#ifndef WIDTH
#define WIDTH 64
#endif
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void dot_product(__global const float *a, __global const float *b, __global float *y, const int n) {
    __local float part[64];
    const int me = get_local_id(0);
    float sum = 0.0f;
    for (int i = me; i < n; i += WIDTH) {
        sum += a[i] * b[i];
    }
    part[me] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = WIDTH / 2; step > 0; step >>= 1) {
        if (me < step) {
            part[me] += part[me + step];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    y[get_global_id(0)] = part[0];
}
"""

_OPENCL_UPDATE = """
int place(int at, int first, int step) {
    return first + step * at;
}

__kernel void put(__global const int *at, __global int *x, int first, int step, int n) {
    int i = get_global_id(0);
    if (i >= n) return;
    int p = place(at[i], first, step);
    if (p >= 0 && p < n) {
        x[i] = x[i] + (p > 3 ? 2 : 1);
    }
}
"""


def _scaled(a: Any, alpha: float) -> Any:
    return a * alpha


def _dot(a: Any, b: Any) -> Any:
    return (a * b).sum() + a * 0


def _put(at: Any, x: Any, first: int, step: int) -> Any:
    places = first + step * at
    inside = (places >= 0) & (places < x.shape[0])
    return np.where(inside, x + np.where(places > 3, 2, 1), x).astype(np.int32)


CORPUS: tuple[Good, ...] = (
    Good("wgsl", _WGSL_SCALE, _scaled),
    Good("wgsl", _WGSL_SUMS, _dot),
    Good("wgsl", _WGSL_UPDATE, _put, ("x",)),
    Good("opencl", _OPENCL_SCALE, _scaled),
    Good("opencl", _OPENCL_SUMS, _dot),
    Good("opencl", _OPENCL_UPDATE, _put, ("x",)),
)


_TOKENS = re.compile(r"\s+|[A-Za-z_]\w*|\d[\w.]*|.", re.DOTALL)
_NUMBERS = ("0", "1", "-1", "2147483647", "4294967295", "-2147483648", "65536", "1e38", "0x7fffffff", "16777216", "64u")
_STRANGE = (
    *_NUMBERS,
    "i32", "u32", "f32", "f64", "vec4<f32>", "array<f32, 16777216>", "loop", "while (true)", "for (;;)", "{", "}", "(",
    ")", ";", "*", "&", "[", "]", "/*", "//", "#define", "#include </etc/passwd>", "goto", "asm", "volatile", "float4",
    "double", "size_t", "*(float *)0", "barrier(0)", "workgroupBarrier()", "discard", "ptr<function, f32>", "@", "\\",
    "\x00", "\u00e9", "\U0001f600", '"', "'", "struct", "private", "var<private> z: array<f32, 4096>;", "y", "a", "x",
)  # fmt: skip


def mutated(good: Good, rng: random.Random) -> str:
    """The text with one to four changes: of bytes, of words, of numbers, or with a piece of another kernel in it."""
    text = good.source
    for _ in range(rng.choice((1, 1, 1, 1, 1, 2, 2, 3))):
        text = rng.choice(_CHANGES)(text, rng)
    return text


def _change_bytes(text: str, rng: random.Random) -> str:
    data = bytearray(text.encode())
    for _ in range(rng.randint(1, 3)):
        if not data:
            break
        where = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[where] = rng.randrange(256)
            case 1:
                del data[where : where + rng.choice((1, 1, 2, 8))]
            case _:
                data[where:where] = bytes(rng.randrange(32, 127) for _ in range(rng.choice((1, 1, 4))))
    return data.decode("utf-8", "replace")


def _change_words(text: str, rng: random.Random) -> str:
    words = _TOKENS.findall(text)
    solid = [number for number, word in enumerate(words) if not word.isspace()]
    if not solid:
        return text
    where, other = rng.choice(solid), rng.choice(solid)
    match rng.randrange(5):
        case 0:
            words[where] = ""
        case 1:
            words[where] = words[other]
        case 2:
            words[where], words[other] = words[other], words[where]
        case 3:
            words[where] += " " + rng.choice(_STRANGE)
        case _:
            words[where] = rng.choice(_STRANGE)
    return "".join(words)


def _change_number(text: str, rng: random.Random) -> str:
    numbers = list(re.finditer(r"\b\d[\w.]*", text))
    if not numbers:
        return text
    chosen = rng.choice(numbers)
    return text[: chosen.start()] + rng.choice(_NUMBERS) + text[chosen.end() :]


def _change_index(text: str, rng: random.Random) -> str:
    """Where an array is used, another place of it."""
    used = list(re.finditer(r"\[[^\]\n]*\]", text))
    if not used:
        return text
    chosen = rng.choice(used)
    inside = chosen.group()[1:-1]
    changed = rng.choice(
        (f"{inside} + 1", f"{inside} - 100", f"{inside} * 1000003", rng.choice(_NUMBERS), f"-({inside})")
    )
    return f"{text[: chosen.start()]}[{changed}]{text[chosen.end() :]}"


def _drop_condition(text: str, rng: random.Random) -> str:
    used = list(re.finditer(r"\b(?:if|while) \([^\n{]*\)|(?<=; )[^;\n]*(?=;)", text))
    if not used:
        return text
    chosen = rng.choice(used)
    changed = rng.choice(("if (true)", "while (true)", "if (1)", "true", ""))
    return text[: chosen.start()] + changed + text[chosen.end() :]


def _splice(text: str, rng: random.Random) -> str:
    lines, others = text.splitlines(keepends=True), rng.choice(CORPUS).source.splitlines(keepends=True)
    where = rng.randrange(len(lines) + 1)
    first = rng.randrange(len(others))
    return "".join([*lines[:where], *others[first : first + rng.randint(1, 4)], *lines[where + rng.randrange(2) :]])


def _cut(text: str, rng: random.Random) -> str:
    first = rng.randrange(len(text) + 1)
    return text[:first] if rng.random() < 0.5 else text[:first] + text[first + rng.randint(1, 60) :]


def _change_operator(text: str, rng: random.Random) -> str:
    operators = list(re.finditer(r" (?:[-+*/%]|<|>|<=|>=|&&|=|\+=|>>=) ", text))
    if not operators:
        return text
    chosen = rng.choice(operators)
    changed = rng.choice(("+", "-", "*", "/", "%", "<", ">=", "==", "<<", ">>", "+=", "="))
    return f"{text[: chosen.start()]} {changed} {text[chosen.end() :]}"


def _change_name(text: str, rng: random.Random) -> str:
    """A name that the text has in the place of another."""
    names = list(re.finditer(r"\b(?:a|b|x|y|i|p|n|id|me|at|sum|part|step|alpha|first)\b", text))
    if len(names) < 2:
        return text
    chosen, other = rng.sample(names, 2)
    return text[: chosen.start()] + other.group() + text[chosen.end() :]


#: Those at the end leave most texts readable, so that the kernels run: they count more.
_CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    _change_bytes,
    _change_words,
    _splice,
    _cut,
    *(_change_number, _change_operator, _change_name, _drop_condition) * 2,
    *(_change_index,) * 4,
)
