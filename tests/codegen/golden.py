"""Kernel texts of a few programs, kept as files: a change that is meant to change no kernel changes none of them.

`python -m tests.codegen.golden --update` writes them anew; read the difference before it is committed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.target import Target
from anygpu.program.primitives import Spec
from tests.codegen.planning import CARD, LEAST, PROCESSOR, dense, layer_norm, plan, sigmoid_chain, softmax, spec

FOLDER = Path(__file__).parent / "golden"

#: Odd sizes, so that the ends of everything are in the texts.
EXAMPLES: dict[str, tuple[Callable[..., Any], tuple[Spec, ...]]] = {
    "chain": (sigmoid_chain, (spec(1025),)),
    "softmax": (softmax, (spec(63, 257),)),
    "layer_norm": (layer_norm, (spec(65, 1023), spec(1023), spec(1023))),
    "mean_of_everything": (lambda x: x.mean(), (spec(257, 1025),)),
    "sum_of_columns": (lambda x: x.sum(axis=0), (spec(1025, 63),)),
    "dense_with_gelu": (dense, (spec(65, 127), spec(127, 63), spec(63))),
    "bytes_turned": (lambda x: np.flip(x.T[1:], 0), (spec(65, 63, dtype="uint8"),)),
    "halves": (lambda x: x * x, (spec(257, dtype="float16"),)),
    "where_and_comparison": (lambda x, y: np.not_equal(np.where(x > y, x, y), 0), (spec(65), spec(65))),
    "complex_product": (lambda x, y: x * y, (spec(65, dtype="complex64"), spec(65, dtype="complex64"))),
    "gather": (lambda x, i: x[i], (spec(65, 3), spec(257, dtype="int32"))),
    "padded": (lambda x: np.pad(x, ((1, 2), (0, 3))), (spec(7, 9),)),
    "running_sum": (lambda x: np.cumsum(x, axis=0), (spec(1025, 3),)),
}
TARGETS: dict[str, Target] = {"wgsl": CARD, "cl": PROCESSOR}


def texts() -> dict[str, str]:
    """What each file should have in it, by the file's name."""
    found = {}
    for ending, target in TARGETS.items():
        for name, (function, inputs) in EXAMPLES.items():
            found[f"{name}.{ending}"] = "\n".join(
                _shown(each) for each in plan(function, *inputs, target=target).kernels
            )
    windows = plan(lambda x: x + 1, spec(5000), target=_with_small_windows())
    found["windows.wgsl"] = "\n".join(_shown(each) for each in windows.kernels)
    return found


def _with_small_windows() -> Target:
    return Target(dialect="wgsl", features=LEAST.features, binding_bytes=8192, groups_per_dimension=8)


def _shown(kernel: Kernel) -> str:
    numbers = f", with {', '.join(kernel.numbers)}" if kernel.numbers else ""
    return f"// {kernel.groups} groups of {kernel.group_size}{numbers}\n{kernel.source}"


def update() -> None:
    FOLDER.mkdir(exist_ok=True)
    wanted = texts()
    for path in FOLDER.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", required=True, help="write the files anew")
    parser.parse_args()
    update()
