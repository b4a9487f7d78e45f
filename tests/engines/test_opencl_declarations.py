"""The declarations that spare a compiler its header: the same functions, the same results, the header when in doubt."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.driver import Dispatch
from anygpu.engines.opencl.builder import _FAMILY_OF, with_declarations
from tests.engines.opencl_kernels import affine, open_first, room, whole

#: Where Debian's PoCL has the header that is spared.
HEADER = Path("/usr/share/pocl/include/opencl-c.h")

_PATTERNS = (
    "atomic_add atomic_sub atomic_xchg atomic_min atomic_max atomic_and atomic_or atomic_xor atomic_inc atomic_dec "
    "atomic_cmpxchg atom_add atom_cmpxchg atom_min convert_int convert_uchar_sat convert_int_rtz convert_float "
    "convert_long4 convert_float16 convert_uint8_rte vload2 vload4 vload16 vstore8 vstore16 vload_half vstore_half "
    "vstore_half_rte vload_half4 vload_half16 vstore_half8_rte"
)
NAMES = sorted({*_FAMILY_OF, *_PATTERNS.split()})


@cache
def signatures(text: str) -> dict[str, set[str]]:
    """For each function what it returns and takes, without attributes and names of arguments; nothing of `half`."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|^#[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"__attribute__\(\(.*?\)\)|\b__(ovld|conv|cnfn|purefn)\b", "", text)
    found = defaultdict(set)
    for match in re.finditer(r"\b(\w+)\s+(\w+)\s*\(([^()]*)\)\s*;", text):
        signature = f"{match[1]}({', '.join(map(_type_of, match[3].split(',')))})"
        if not re.search(r"\bhalf(?! \*)", signature):
            found[match[2]].add(signature)
    return found


def _type_of(argument: str) -> str:
    words = argument.replace("*", " * ").replace("unsigned int", "uint").split()
    kept = [word for word in words if word not in ("const", "volatile", "__private")]
    # A name of the argument may stand last.
    if (
        len(kept) > 1
        and kept[-1] != "*"
        and not re.fullmatch(r"u?(char|short|int|long)\d*|(float|double)\d*", kept[-1])
    ):
        kept.pop()
    return " ".join(kept)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_declares_the_same(name: str) -> None:
    """Not one overload less for single numbers, or a call could silently take another one."""
    ours = signatures(with_declarations(f"float2 float3 float4 float8 float16 {name}"))[name]
    theirs = signatures(HEADER.read_text())[name]
    assert ours
    assert ours <= theirs
    # Pointers that name no memory exist only from OpenCL 2.0 on, and never for atomics on private memory.
    without_memory = re.compile(r"\w+\(\w+ \*")
    of_single_numbers = {each for each in theirs if not re.search(r"\d", each) and not without_memory.match(each)}
    assert of_single_numbers <= ours


def using(expression: str, name: str) -> Kernel:
    kernel = affine(257, name=name)
    source = kernel.source.replace("2.0f * x[i] + 1.0f", expression)
    return msgspec.structs.replace(kernel, source=source)


@pytest.mark.sampled(gate=3)
@pytest.mark.parametrize(
    "expression",
    [
        "exp(x[i]) + tanh(x[i]) * log1p(fabs(x[i]))",
        "max(x[i], 1.5f) + min(convert_int_rtz(x[i]), 3) + clamp(x[i], -0.5f, 0.5f)",
        "select(1.0f, INFINITY, isnan(x[i])) + as_float(0x3f800000u) + (float)popcount(as_int(x[i]))",
        "fma(x[i], x[i], (float)sqrt((double)fabs(x[i]))) + ldexp(x[i], 3) + (float)abs(-3)",
        # Not declared by us: built with the whole header instead.
        "native_exp(x[i]) * 0.0f + smoothstep(0.0f, 1.0f, x[i])",
    ],
)
def test_results_are_the_same_with_and_without_the_header(expression: str) -> None:
    engine, _, driver = open_first()
    values = np.random.default_rng(1).standard_normal(257).astype(np.float32)
    source = whole(driver, values)
    results = []
    for own, name in ((True, "without"), (False, "with")):
        driver._builder._own_declarations = own
        target = room(driver, values.nbytes)
        driver.submit([Dispatch(driver.build(using(expression, name)), (source, target), (0,))])
        results.append(driver.read(target).view(np.float32))
    np.testing.assert_array_equal(results[0], results[1])
    driver.close()
    engine.close()


def test_messages_count_the_lines_of_the_kernel() -> None:
    text = with_declarations("first\nsecond exp\n")
    assert text.endswith("#line 1\nfirst\nsecond exp\n")


def test_only_what_is_used_is_declared() -> None:
    text = with_declarations("y[i] = exp(x[i]);")
    assert "float __attribute__((overloadable, const)) exp(float);" in text
    assert "exp2" not in text
    assert "float4" not in text
