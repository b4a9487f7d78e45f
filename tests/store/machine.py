"""Many sequences of random steps on a store.

A sequence is a list of numbers, each of which is one step whatever came before it, so that any part of a sequence is a
sequence too. `python -m tests.store.machine --sequences 10000 --steps 50 --device numpy` runs many of them, and
makes the one that fails as short as it can be.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time
from collections.abc import Sequence

from tests.store.checking import Wrong
from tests.store.steps import RULES, WEIGHTS, Machine


def numbers_of(seed: int, steps: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(48) for _ in range(steps + 1)]


def run(device: str, numbers: Sequence[int], *, deadly: bool = False) -> None:
    """One sequence: its store, and a step for each number."""
    machine = Machine(device, numbers[0], deadly=deadly)
    try:
        for number in numbers[1:]:
            machine.step(number)
        machine.close()
    finally:
        machine.discard()


def shortened(device: str, numbers: list[int], *, deadly: bool = False, seconds: float = 60) -> list[int]:
    """Without the steps that are not needed for the failure."""
    end = time.monotonic() + seconds
    length = len(numbers) // 2
    while length:
        at = 1
        while at < len(numbers) and time.monotonic() < end:
            fewer = numbers[:at] + numbers[at + length :]
            try:
                run(device, fewer, deadly=deadly)
                at += length
            except Wrong:
                numbers = fewer
        length //= 2
    return numbers


def story(device: str, numbers: Sequence[int], *, deadly: bool = False) -> str:
    """What the steps were, and how it ended."""
    machine = Machine(device, numbers[0], deadly=deadly)
    budgets = machine.store._tiers.budgets
    lines = [f"mode={machine.mode} {budgets} hash={machine.store._hash} exact={machine.checks.exact}"]
    try:
        for number in numbers[1:]:
            lines.append(random.Random(number).choices(RULES, WEIGHTS)[0].__name__)
            machine.step(number)
        machine.close()
    except Wrong as error:
        lines.append(str(error))
    finally:
        machine.discard()
    return "\n  ".join(lines)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="numpy")
    parser.add_argument("--seed", type=int, default=0, help="of the first sequence")
    parser.add_argument("--deadly", type=float, default=0.002, help="the part of sequences in which processes die")
    parser.add_argument("--failures", type=int, default=1, help="after how many to stop")
    options = parser.parse_args()
    gc.collect()
    gc.freeze()
    began = time.monotonic()
    failures = 0
    for seed in range(options.seed, options.seed + options.sequences):
        numbers = numbers_of(seed, options.steps)
        deadly = random.Random(seed).random() < options.deadly
        try:
            run(options.device, numbers, deadly=deadly)
        except Wrong as error:
            failures += 1
            tell(f"sequence {seed}: {error}")
            numbers = shortened(options.device, numbers, deadly=deadly)
            tell(f"  {numbers}\n  {story(options.device, numbers, deadly=deadly)}")
            if failures == options.failures:
                break
        done = seed - options.seed + 1
        if done % 500 == 0:
            tell(f"{done} sequences, {time.monotonic() - began:.0f} s")
    seconds = time.monotonic() - began
    tell(f"{done} sequences of {options.steps} steps on {options.device}: {failures} failed, {seconds:.0f} s")
    left = [thread.name for thread in threading.enumerate() if thread.name == "anygpu-prefetch"]
    if left:
        tell(f"threads are left: {left}")
    return 1 if failures or left else 0


if __name__ == "__main__":
    sys.exit(main())
