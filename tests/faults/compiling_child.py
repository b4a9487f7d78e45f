"""Faults under whole programs, one scenario for each process: `python -m tests.faults.compiling_child <name> <engine>`.

A scenario prints one word for each thing that it saw.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import psutil

from anygpu.engines.codegen.kernel import Kernel
from anygpu.errors import AnyGPUError
from tests.engines.compiled import Running, running
from tests.faults.webgpu_child import lose


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except AnyGPUError as error:
        return type(error).__name__
    except Exception as error:  # noqa: BLE001 - the parent compares its name
        return f"foreign:{type(error).__name__}"
    return "nothing"


def works(opened: Running) -> str:
    values = np.arange(1025, dtype=np.float32)
    (result,) = opened.values(lambda a: a * 2 + 1, values)
    return "works" if np.array_equal(result, values * 2 + 1) else "wrong"


def lost(name: str) -> None:
    """The device goes away under a program that was running well."""
    with running(name) as opened:
        say(works(opened))
        arrays = [opened.up(np.ones(65, np.float32))]
        arrays += opened.run(lambda a: a + 1, arrays[0])
        driver: Any = opened.session.driver
        lose(driver)
        say(
            outcome(lambda: opened.down(arrays[1])),
            outcome(lambda: opened.run(lambda a: a + 1, arrays[0])),
            outcome(lambda: opened.run(lambda a: a + 2, arrays[0])),
            outcome(lambda: opened.up(np.ones(3))),
            outcome(opened.session.synchronize),
        )
        arrays.clear()
        say(outcome(opened.engine.close))
    with running(name) as again:
        say(works(again))


def out_of_memory(name: str) -> None:
    with running(name) as opened:
        say(works(opened))
        most = psutil.Process().memory_info().vms + (1 << 29)
        usual = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, usual[1]))
        for _ in range(2):
            kept: list[Any] = []

            def fill(kept: list[Any] = kept) -> None:
                x = opened.up(np.ones(1 << 20, np.float32))
                while len(kept) < 40:
                    kept.append(opened.run(lambda a: np.broadcast_to(a, (32, 1 << 20)) + 1, x))

            say(outcome(fill), len(kept) < 40)
            kept.clear()
            say(works(opened))
        # Threads of the library that have no memory to end in would take the process with them.
        resource.setrlimit(resource.RLIMIT_AS, usual)


def too_big(name: str) -> None:
    with running(name) as opened:
        largest = opened.device.limits["max-buffer-size"]
        x = opened.up(np.ones(1 << 10, np.float32))
        rows = largest // (4 << 10) + 1
        try:
            opened.run(lambda a: np.broadcast_to(a, (rows, 1 << 10)) + a, x)
        except AnyGPUError as error:
            limit = getattr(error, "limit", None)
            say(type(error).__name__, limit is not None and limit <= largest)
        say(works(opened))


def bad_kernel(name: str) -> None:
    with running(name) as opened:
        say(works(opened))
        driver: Any = opened.session.driver
        build = driver.build

        def spoiled(kernel: Kernel, **options: Any) -> Any:
            return build(msgspec.structs.replace(kernel, source=f"{kernel.source}\nnonsense("), **options)

        driver.build = spoiled
        say(outcome(lambda: opened.values(lambda a: a - 3, np.ones(65, np.float32))))
        driver.build = build
        say(works(opened))
        # A refusal is remembered for its program, and for no other.
        (result,) = opened.values(lambda a: a - 4, np.ones(65, np.float32))
        say("works" if (result == -3).all() else "wrong")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
