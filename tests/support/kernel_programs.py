"""Programs whose kernels are looked at as texts, and devices to print them for; no device is needed.

`scripts/kernel-texts` compares the texts with those of another version, `scripts/kernel-compilers` compiles them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import count, islice
from typing import Any

import numpy as np

import anygpu as ag
from anygpu import nn
from anygpu.array.trace.traced import Traced
from anygpu.array.trace.tracing import trace
from anygpu.base.typing import HostArray
from anygpu.engines.codegen.kernel import Kernel
from anygpu.engines.codegen.schedule import schedule
from anygpu.engines.codegen.target import Target
from anygpu.engines.codegen.value_analysis import IndexFacts
from anygpu.engines.numpy.lowering import evaluate_constant
from anygpu.program.dtypes import DType
from anygpu.program.graph import Program
from anygpu.program.ops.custom import with_references
from anygpu.program.ops.linear import Attend
from anygpu.program.primitives import Gather, Primitive, Scatter, Spec
from anygpu.program.transforms import simplified
from anygpu.testing.cases import conformance_programs
from tests.support.random_programs import WEIGHTS, random_program

COUNT = 1000

#: Devices as different as kernels see them: lavapipe, a card, the least that WebGPU promises; PoCL, a card in OpenCL.
TARGETS = {
    "wgsl": Target(
        dialect="wgsl",
        features=("f16", "f64", "i64", "subgroups"),
        group_limit=1024,
        group_memory=32768,
        subgroup_size=8,
    ),
    "wgsl-card": Target(
        dialect="wgsl",
        features=("f16", "f64", "i64"),
        group_limit=1024,
        group_memory=32768,
        bindings=16,
        loop_limit=1 << 30,
        trusted=("exp_f32", "log_f32", "sin_f32", "power_f32"),
    ),
    "wgsl-least": Target(dialect="wgsl"),
    "opencl": Target(
        dialect="opencl",
        features=("f64", "i64"),
        group_limit=4096,
        group_memory=2 << 20,
        bindings=64,
        binding_bytes=1 << 32,
        groups_per_dimension=None,
        loop_limit=(1 << 31) - 1,
    ),
    "opencl-card": Target(
        dialect="opencl",
        features=("f16", "f64", "i64"),
        group_memory=32768,
        groups_per_dimension=None,
        loop_limit=(1 << 31) - 1,
        subgroup_size=32,
    ),
}

EXAMPLES = {
    "kmeans": "kmeans_step",
    "pca": "pca",
    "black_scholes": "black_scholes",
    "nbody": "nbody_step",
    "edges": "edges",
    "mandelbrot": "mandelbrot",
    "fft_filter": "low_pass",
    "softmax_regression": "training_step",
    "kalman": "kalman",
    "life": "life",
    "stream_large_file": "certainty",
}


@cache
def programs() -> list[tuple[str, Callable[[], Program]]]:
    """Names, and how to make each; random programs make up the number."""
    named = [*_conformance(), *_examples(), *_encoders(), *_large()]
    return [*named, *islice(_random(), COUNT - len(named))]


def _conformance() -> Iterator[tuple[str, Callable[[], Program]]]:
    for sheet in conformance_programs():
        yield f"conformance {sheet.name}", partial(getattr, sheet, "program")


def _examples() -> Iterator[tuple[str, Callable[[], Program]]]:
    for module, function in EXAMPLES.items():

        def made(module: str = module, function: str = function) -> Program:
            example = importlib.import_module(f"examples.{module}")
            return _traced(getattr(example, function), *example.inputs(np.random.default_rng(0)))

        yield f"example {module}", made


def _traced(function: Callable[..., Any], *arguments: Any) -> Program:
    """Arrays from outside of the function are inputs as well, as they are in an offloaded call."""
    traced = trace(function, arguments, {})
    assert isinstance(traced, Traced), f"{function.__name__} cannot be traced: {traced}"
    return traced.program


def _encoders() -> Iterator[tuple[str, Callable[[], Program]]]:
    from examples.encoders import minilm, vision

    yield (
        "encoder vision",
        lambda: _with_weights(
            vision.encode, vision.random_weights(), Spec((2, vision.SIDE, vision.SIDE, 3), "float32")
        ),
    )
    for tokens in (7, 32, 128):
        given = Spec((4, tokens), "int32"), Spec((4, tokens), "bool")
        for layers in (1, 6):
            name = f"encoder minilm {tokens} tokens {layers} layers"
            yield name, partial(_minilm_program, layers, *given)
    given = Spec((4, 16), "int32"), Spec((4, 16), "bool")
    yield (
        "encoder minilm quantised",
        lambda: _traced(
            minilm.encode, *(np.zeros(each.shape, each.dtype) for each in given), minilm.quantised(_minilm(1))
        ),
    )


def _minilm_program(layers: int, *given: Spec) -> Program:
    from examples.encoders import minilm

    return _with_weights(minilm.encode, _minilm(layers), *given)


def _minilm(layers: int) -> dict[str, HostArray]:
    """Weights of the model's shapes. They are inputs, so what they are does not matter."""
    width, wide = 384, 1536
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}_embeddings.weight": (rows, width) for name, rows in _TABLES.items()
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(layers):
        at = f"encoder.layer.{layer}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        dense = {f"attention.self.{name}": (width, width) for name in ("query", "key", "value")}
        dense |= {
            "attention.output.dense": (width, width),
            "intermediate.dense": (wide, width),
            "output.dense": (width, wide),
        }
        for name, shape in dense.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
    shapes |= {f"{name}.{part}": (width,) for name in norms for part in ("weight", "bias")}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


_TABLES = {"word": 500, "position": 512, "token_type": 2}


def _with_weights(function: Callable[..., Any], weights: dict[str, HostArray], *given: Spec) -> Program:
    names = list(weights)

    def called(*arguments: Any) -> Any:
        own = len(given)
        return function(*arguments[:own], dict(zip(names, arguments[own:], strict=True)))

    return ag.record(called, *given, *(Spec(each.shape, "float32") for each in weights.values()))


def _large() -> Iterator[tuple[str, Callable[[], Program]]]:
    """Sizes that random programs do not reach: the templates in all types, with their ends."""

    def of(function: Callable[..., Any], *specs: Spec) -> Callable[[], Program]:
        return lambda: ag.record(function, *specs)

    given: tuple[Spec, ...]
    every: tuple[DType, ...] = ("float32", "float64", "float16", "int32", "int64", "uint8", "complex64")
    for dtype in every:
        for n, m, k in ((128, 128, 128), (65, 127, 33), (1024, 16, 1024), (1, 500, 300), (500, 1, 300), (7, 7, 5000)):
            given = Spec((n, k), dtype), Spec((k, m), dtype)
            yield f"matmul {dtype} {n} {m} {k}", of(lambda a, b: a @ b, *given)
        given = Spec((3, 65, 40), dtype), Spec((3, 30, 40), dtype)
        yield f"matmul transposed {dtype}", of(lambda a, b: a @ b.transpose(0, 2, 1) + 1, *given)
        line, rows = Spec((100_003,), dtype), Spec((300, 1025), dtype)
        yield f"sort {dtype}", of(lambda x: (np.sort(x), np.argsort(x)), line)
        yield f"sort rows {dtype}", of(lambda x: np.sort(x, axis=0), rows)
        yield f"sums {dtype}", of(lambda x: (x.sum(), x.sum(axis=0), x.sum(axis=1), x.prod(axis=1)), rows)
        yield f"running {dtype}", of(lambda x: (np.cumsum(x), np.cumprod(x[:100])), line)
        yield f"running rows {dtype}", of(lambda x: (np.cumsum(x, axis=0), np.cumsum(x, axis=1)), rows)
        index = Spec((5000,), "int64")
        yield f"gather {dtype}", of(lambda x, i: x[i] * 2, line, index)
        yield f"search {dtype}", of(np.searchsorted, line, Spec((777,), dtype))
        if dtype != "complex64":
            yield f"extremes {dtype}", of(lambda x: (x.max(axis=1), x.argmin(axis=0), x.argmax()), rows)
        if dtype.startswith("float"):
            yield f"attention {dtype}", of(nn.attention, *([Spec((2, 4, 65, 64), dtype)] * 3))
    transformed: tuple[DType, ...] = ("float32", "float64", "complex64", "complex128")
    for dtype in transformed:
        for length in (8, 1000, 1024, 4096, 8192, 97, 5000, 65536):
            yield f"fft {dtype} {length}", of(np.fft.fft, Spec((3, length), dtype))
    for causal in (False, True):
        for tokens, width in ((1, 64), (17, 32), (512, 64), (300, 128)):
            given = (Spec((8, tokens, width), "float32"),) * 3
            yield (
                f"attention {tokens} {width} {'causal' if causal else 'whole'}",
                of(partial(nn.attention, causal=causal), *given),
            )
    for shape, kernel in (((2, 3, 32, 32), (8, 3, 3, 3)), ((1, 16, 30, 31), (33, 16, 5, 5))):
        given = Spec(shape, "float32"), Spec(kernel, "float32")
        yield f"convolution {shape} {kernel}", of(_convolved, *given)


def _convolved(images: Any, kernels: Any) -> Any:
    windows = np.lib.stride_tricks.sliding_window_view(images, kernels.shape[2:], axis=(2, 3))
    return np.einsum("nchwyx,ocyx->nohw", windows, kernels)


def _random() -> Iterator[tuple[str, Callable[[], Program]]]:
    for seed in count():
        yield f"seed {seed}", partial(random_program, seed)
        if seed % 8 == 0:
            weights: dict[type[Primitive], float] = {**WEIGHTS, Attend: 12}
            yield (
                f"seed {seed} with attention",
                partial(random_program, seed, primitives=weights, max_nodes=16),
            )
        if seed % 4 == 0:
            yield f"seed {seed} large", partial(random_program, seed, max_nodes=40, max_elements=1 << 14)


def kernels_of(program: Program, target: Target) -> list[Kernel]:
    """What a compiling engine would compile, with the first and the last candidates of everything that is tuned."""
    simple = simplified(with_references(program, target.dialect), evaluate_constant)
    facts = IndexFacts(simple)

    def in_range(node: int) -> bool:
        op, inputs = simple.nodes[node]
        if not isinstance(op, Gather | Scatter):
            return True
        return facts.surely_in_range(inputs[1], simple.specs[inputs[0]].shape[op.axis])

    options: dict[str, Any] = {"in_range": in_range, "distinct": facts.surely_distinct}
    first = schedule(simple, target, **options)
    last = {choice.name: choice.candidates[-1] for choice in first.choices}
    offsets = (True,) * program.input_count
    again = schedule(simple, target, **options, offsets=offsets, chosen=last)
    return [*first.kernels, *again.kernels]
