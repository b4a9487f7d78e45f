"""Binary search on lavapipe and PoCL against NumPy's searchsorted."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from anygpu.base.typing import HostArray
from anygpu.engines.codegen.target import SYNTAX, Dialect
from anygpu.engines.codegen.templates.sort import search_text
from anygpu.engines.codegen.templates.stages import Stage, struct_text
from tests.codegen.running import TARGETS, load, run, store

DIALECTS: list[Dialect] = ["wgsl", "opencl"]


def found(dialect: Dialect, line: HostArray, values: HostArray, side: Literal["left", "right"]) -> HostArray:
    """One stage that looks up each value; the line is an accessor of one row."""
    split = [[x.real, x.imag] if np.iscomplexobj(x) else [x] for x in (line[None], values[None])]
    lines = [load(f"load_row_{k}", part) for k, part in enumerate(split[0])]
    loads = [load(f"load_{k}", part) for k, part in enumerate(split[1])]
    kinds = tuple(each.kind for each in loads)
    text, calls = search_text(TARGETS[dialect], "search", kinds, len(line), side)
    accessors = []
    for k, kind in enumerate(kinds):
        word = SYNTAX[dialect].types[kind]
        head = f"fn load_line_{k}(i: i32) -> {word}" if dialect == "wgsl" else f"{word} load_line_{k}(${{taken}}int i)"
        accessors.append(f"{head} {{\n    return load_row_{k}(${{pass}}0, i);\n}}")
    value = f"search(${{pass}}{', '.join(f'load_{k}(${{pass}}row, i)' for k in range(len(kinds)))})"
    stage = Stage(
        name="searching",
        template="scatter_fill",
        groups=-(-len(values) // 64),
        group_size=64,
        reads=("in",),
        writes=("out",),
        values={
            "helpers": "\n".join([struct_text(SYNTAX[dialect], ("i32",)), *accessors, text]),
            "count": str(len(values)),
            "row_length": str(len(values)),
            "load": f"Value({value})" if dialect == "wgsl" else f"(Value){{{value}}}",
            "store": "store_0(${pass}row, i, value.part_0);",
        },
        calls=calls,
    )
    (places,) = run(dialect, ([], [stage]), [*lines, *loads, store("store_0", "i32", 1, len(values))])
    return places.ravel()


@pytest.mark.sampled(gate=6)
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "float64", "complex64"])
def test_as_numpy_with_nan_last(dialect: Dialect, side: Literal["left", "right"], dtype: str) -> None:
    rng = np.random.default_rng(0)
    some = np.array([-np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan]) if dtype[0] in "fc" else np.arange(7)
    line, values = rng.choice(some, 65).astype(dtype), rng.choice(some, 129).astype(dtype)
    if dtype[0] == "c":
        line.imag, values.imag = rng.choice(some, 65), rng.choice(some, 129)
    line = np.sort(line)
    np.testing.assert_array_equal(found(dialect, line, values, side), np.searchsorted(line, values, side))


@pytest.mark.parametrize("length", [1, 2, 1023, 1024, 1025, 100_003])
def test_lines_of_any_length(length: int) -> None:
    rng = np.random.default_rng(length)
    line = np.sort(rng.integers(0, 1000, length).astype(np.int32))
    values = rng.integers(-5, 1005, 1000).astype(np.int32)
    np.testing.assert_array_equal(found("wgsl", line, values, "left"), np.searchsorted(line, values))
