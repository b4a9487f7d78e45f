"""Attention, products with int8 weights and layer norm: anygpu beside the same kernels written by hand, torch and jax.

    python -m benchmarks.kernels
    python -m benchmarks.kernels --engine webgpu --only attention --seconds 10

All of them run by turns in one process. Kernels written by hand go through the same driver as anygpu's, and the
device's own clock compares the two; what counts of each is its best round. Where the device is this processor, its time
is compared too. Other work on the machine disturbs that least, but what a call costs beside its kernel is in it: so on
a busy machine it is judged in place of the device's clock, for kernels that take 2 ms of it or more. torch and jax run
on the processor and are timed from the call to the result, and so is anygpu beside them, with its arguments on the
device. Of a kernel of less than 0.1 ms the device's clock tells mostly how long threads take to wake up: such a ratio
has no bound.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import psutil

from anygpu import nn
from anygpu.base.typing import HostArray
from anygpu.errors import AnyGPUError
from benchmarks.bare import Disagreement, by_hand, credible, in_turns, require_agreement
from benchmarks.handwritten.ours import NotOnTheDevice, Ours
from benchmarks.handwritten.side import Prepared, Side
from benchmarks.handwritten.workloads import Workload
from benchmarks.report import Figure, options_parser, publish, say

DEVICE_BOUND = 1.05
#: Seconds by hand from which on device times are compared.
COMPARABLE = 1e-4
#: Seconds of the processor by hand from which on a call's own cost is nothing beside them.
LONG_ENOUGH = 2e-3
#: int8 weights with their scales, against float32.
WEIGHTS_BOUND = 0.27

FEWEST_ROUNDS, MOST_ROUNDS = 8, 200
#: Threads of torch and jax go on looking for work for a while: nobody else is timed in that while.
PAUSE = 0.01

#: Runs a workload once, on the processor.
Peer = Callable[[], Any]


def _normal(*shape: int, seed: int) -> HostArray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def attention(heads: int, count: int, depth: int, *, causal: bool = False) -> Workload:
    name = f"{'causal ' if causal else ''}attention 1×{heads}×{count}×{depth}"
    size = {"HEADS": heads, "COUNT": count, "DEPTH": depth}
    shape = (1, heads, count, depth)
    return Workload(
        name=name,
        kind="attention",
        function=lambda q, k, v: nn.attention(q, k, v, causal=causal),
        size={**size, "CAUSAL": 1} if causal else size,
        make=lambda: (_normal(*shape, seed=0), _normal(*shape, seed=1), _normal(*shape, seed=2)),
    )


def int8_matmul(rows: int, inner: int, columns: int) -> Workload:
    def make() -> tuple[HostArray, ...]:
        weights = nn.quantise(_normal(inner, columns, seed=1), axis=1)
        return _normal(rows, inner, seed=0), weights.data, weights.scale

    return Workload(
        name=f"int8 matmul {rows}×{inner}×{columns}",
        kind="matmul_int8",
        function=lambda x, data, scale: nn.quantised_matmul(
            x, nn.Quantised(data, scale, None, bits=8, shape=(inner, columns), axis=1)
        ),
        size={"ROWS": rows, "INNER": inner, "COLUMNS": columns},
        make=make,
    )


def layer_norm(rows: int, columns: int) -> Workload:
    return Workload(
        name=f"layer norm {rows}×{columns}",
        kind="layer_norm",
        function=lambda x, scale, shift: nn.layer_norm(x, scale, shift),
        size={"ROWS": rows, "COLUMNS": columns},
        make=lambda: (_normal(rows, columns, seed=0), _normal(columns, seed=1), _normal(columns, seed=2)),
    )


WORKLOADS = [
    *(attention(*size, causal=causal) for size in ((12, 128, 32), (8, 512, 64)) for causal in (False, True)),
    *(int8_matmul(*size) for size in ((1, 384, 1536), (128, 384, 1536), (512, 1024, 1024))),
    layer_norm(4096, 768),
]


# -- torch and jax


def peers_of(workload: Workload, arguments: Sequence[HostArray]) -> dict[str, Peer]:
    """The same in the libraries that are installed, ready to run."""
    found: dict[str, Peer] = {}
    try:
        found["torch"] = _in_torch(workload, arguments)
    except ImportError:
        say("torch is not installed: not compared.")
    try:
        found["jax"] = _in_jax(workload, arguments)
    except ImportError:
        say("jax is not installed: not compared.")
    return found


def _in_torch(workload: Workload, arguments: Sequence[HostArray]) -> Peer:
    import torch

    x, y, z = (torch.from_numpy(each) for each in arguments)
    functional = torch.nn.functional
    match workload.kind:
        case "attention":
            causal = "CAUSAL" in workload.size
            return lambda: functional.scaled_dot_product_attention(x, y, z, is_causal=causal)
        case "matmul_int8":
            return lambda: (x @ y.to(torch.float32)) * z
    return lambda: functional.layer_norm(x, (x.shape[1],), y, z)


def _in_jax(workload: Workload, arguments: Sequence[HostArray]) -> Peer:
    import jax
    import jax.numpy as jnp

    x, y, z = (jnp.asarray(each) for each in arguments)
    match workload.kind:
        case "attention":
            causal = "CAUSAL" in workload.size
            # It wants heads behind positions.
            x, y, z = (jnp.swapaxes(each, 1, 2) for each in (x, y, z))
            made = jax.jit(lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal))
        case "matmul_int8":
            made = jax.jit(lambda a, data, scale: (a @ data.astype(jnp.float32)) * scale)
        case _:
            made = jax.jit(_normalised_in_jax)
    return lambda: made(x, y, z).block_until_ready()


def _normalised_in_jax(x: Any, scale: Any, shift: Any) -> Any:
    import jax

    distance = x - x.mean(axis=1, keepdims=True)
    variance = (distance * distance).mean(axis=1, keepdims=True)
    return distance * jax.lax.rsqrt(variance + 1e-5) * scale + shift


def as_numpy(workload: Workload, name: str, result: Any) -> HostArray:
    """The result of a peer with its axes as in the workload."""
    values = np.asarray(result)
    return np.swapaxes(values, 1, 2) if name == "jax" and workload.kind == "attention" else values


# -- measuring


def measure(workload: Workload, bare: Side, ours: Ours, *, seconds: float, busy: bool) -> list[Figure]:
    arguments = workload.make()
    expected = np.asarray(workload.function(*arguments))
    our_side = ours.prepared(workload, arguments, expected)
    sides: dict[str, Prepared] = {"by hand": bare.prepared(workload, arguments, expected), "anygpu": our_side}
    for name, side in sides.items():
        require_agreement(side.round_trip(), expected, workload, name)
    peers = peers_of(workload, arguments)
    for name, peer in peers.items():
        require_agreement(as_numpy(workload, name, peer()), expected, workload, name)
    best = best_of_turns(sides, peers, seconds)
    return figures(workload, best, kernels=our_side.kernels, software=bare.is_software, busy=busy)


def best_of_turns(sides: dict[str, Prepared], peers: dict[str, Peer], seconds: float) -> dict[str, float]:
    """Of each the best round; the first of each finds nothing in the caches, and does not count."""
    taken: dict[str, list[float]] = defaultdict(list)
    clocks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for order in in_turns(sides, seconds, FEWEST_ROUNDS, MOST_ROUNDS):
        for name, side in order:
            taken[name].append(side.resident())
            for _ in range(3):
                processor = time.process_time()
                clocks[name].append(side.device_seconds())
                taken[f"{name}, processor"].append(time.process_time() - processor)
        for name, peer in peers.items():
            begin = time.perf_counter()
            peer()
            taken[name].append(time.perf_counter() - begin)
        if peers:
            time.sleep(PAUSE)
    best = {name: min(each[1:]) for name, each in taken.items()}
    return best | {f"{name}, device": min(credible(each[1:])) for name, each in clocks.items()}


def figures(
    workload: Workload, best: dict[str, float], *, kernels: int, software: bool, busy: bool = False
) -> list[Figure]:
    device, bare = best["anygpu, device"], best["by hand, device"]
    by_processor = software and busy and best["by hand, processor"] >= LONG_ENOUGH
    found = [
        Figure(name=f"{workload}: anygpu, device", value=device * 1e3, unit="ms"),
        Figure(
            name=f"{workload}: anygpu / by hand, device",
            value=device / bare,
            unit="×",
            bound=DEVICE_BOUND if bare >= COMPARABLE and not by_processor else None,
        ),
    ]
    if software:
        ratio = best["anygpu, processor"] / best["by hand, processor"]
        found.append(
            Figure(
                name=f"{workload}: anygpu / by hand, processor time",
                value=ratio,
                unit="×",
                bound=DEVICE_BOUND if by_processor else None,
            )
        )
    found.append(Figure(name=f"{workload}: anygpu, call", value=best["anygpu"] * 1e3, unit="ms"))
    found += [
        Figure(name=f"{workload}: {name}, call", value=best[name] * 1e3, unit="ms")
        for name in ("torch", "jax")
        if name in best
    ]
    found += [
        Figure(name=f"{workload}: anygpu / {name}, call", value=best["anygpu"] / best[name], unit="×")
        for name in ("torch", "jax")
        if name in best
    ]
    return [*found, Figure(name=f"{workload}: anygpu's kernels", value=kernels, unit="", bound=1)]


def weights_figures(size: int) -> list[Figure]:
    """What quantised weights take, and how far they and products with them are from float32."""
    weights, x = _normal(size, size, seed=1), _normal(256, size, seed=0)
    exact = x @ weights.T
    found: list[Figure] = []
    for bits, axis in ((8, None), (8, 0), (4, None), (4, 0)):
        small = nn.quantise(weights, bits=bits, axis=axis)
        back = nn.dequantise(small)
        judged = bits == 8 and axis == 0
        name = f"int{bits} weights {size}×{size}, {'one scale' if axis is None else 'a scale for each row'}"
        steps = float(np.max(np.abs(back - weights) / np.reshape(small.scale, (-1, 1))))
        found += [
            Figure(
                name=f"{name}: bytes / float32",
                value=small.nbytes / weights.nbytes,
                unit="×",
                bound=WEIGHTS_BOUND if judged else None,
            ),
            Figure(name=f"{name}: furthest weight, in steps", value=steps, unit="steps", bound=0.5001),
            Figure(name=f"{name}: error of the weights, rms", value=_error(back, weights), unit="%"),
            Figure(
                name=f"{name}: error of a product, rms",
                value=_error(x @ back.T, exact),
                unit="%",
                bound=1.0 if judged else None,
            ),
        ]
    return found


def _error(found: Any, exact: Any) -> float:
    """The root of the mean square, in percent of the values'."""
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2))) * 100


def run(options: argparse.Namespace) -> list[Figure]:
    bare, ours = by_hand(options.engine), Ours(options.engine)
    say(f"by hand on {bare.name}; anygpu on {ours.name}")
    load, cores = psutil.getloadavg()[0], os.cpu_count() or 1
    busy = load > cores / 4
    if busy:
        say(f"The machine is busy (load {load:.1f} on {cores} cores): long kernels are judged by the processor's time.")
    found = []
    for workload in WORKLOADS:
        if options.only and options.only.lower() not in workload.name.lower():
            continue
        say(f"{workload} ...")
        try:
            found += measure(workload, bare, ours, seconds=options.seconds, busy=busy)
        except (AnyGPUError, NotOnTheDevice, Disagreement) as error:
            say(f"{workload}: {type(error).__name__}: {error}")
            found.append(Figure(name=f"{workload}: not measured", value=1, unit="", bound=0.5))
    if not options.only or "weights" in options.only:
        found += weights_figures(384)
    return found


def main() -> None:
    parser = options_parser(__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--engine", choices=["opencl", "webgpu"], default="opencl")
    parser.add_argument("--only", metavar="NAME", help="workloads whose name contains this")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each workload is repeated (default: 4)")
    options = parser.parse_args()
    publish(run(options), options)


if __name__ == "__main__":
    main()
