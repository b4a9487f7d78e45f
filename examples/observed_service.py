"""A small service to look at: several functions on several devices, two tenants, a device that is lost on the way.

Run it with `anygpu run -m examples.observed_service`, and look at it with `anygpu top` or `anygpu dashboard`.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import anygpu as ag


def score(features: Any, weights: Any) -> Any:
    return np.tanh(features @ weights).mean(axis=0)


def smooth(image: Any) -> Any:
    return (image[:-2, :-2] + image[1:-1, 1:-1] + image[2:, 2:]) / 3


def spectrum(signal: Any) -> Any:
    return np.abs(np.fft.rfft(signal))


def rank(values: Any) -> Any:
    return np.sort(values, axis=-1)[..., ::-1]


#: Each function, the tenant that asks for it, and how large its arrays are.
WORK: tuple[tuple[Callable[..., Any], str, tuple[int, ...]], ...] = (
    (score, "mobile", (256, 64)),
    (smooth, "mobile", (192, 192)),
    (spectrum, "lab", (4096,)),
    (rank, "lab", (64, 128)),
)


def lose(device: str) -> None:
    """Kill the process that has the device open, as a crash of its driver would."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        if device in " ".join(child.cmdline()):
            os.kill(child.pid, signal.SIGKILL)
            return


def serve(seconds: float, pause: float, loss: float | None, devices: list[str]) -> int:
    """Calls everything again and again for so long; returns how many calls were answered."""
    generator = np.random.default_rng(18)
    weights = generator.random((64, 8), np.float32)
    inputs = [generator.random(shape, np.float32) for _, _, shape in WORK]
    begin, done = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < seconds:
        if loss is not None and elapsed > loss:
            lose(devices[0])
            loss = None
        futures = []
        for round_of_it in range(4):
            for number, (function, tenant, _) in enumerate(WORK):
                arguments = (inputs[number], weights) if function is score else (inputs[number],)
                on = devices[(number + round_of_it) % len(devices)] if devices else None
                futures.append(ag.submit(function, *arguments, tenant=tenant, on=on))
        for future in futures:
            future.result(timeout=120)
            done += 1
        time.sleep(pause)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two rounds of calls")
    parser.add_argument("--loss", type=float, help="lose the first device after so many seconds")
    parser.add_argument(
        "--devices", default="", help="devices to use in turn, as webgpu,numpy; the fastest if left out"
    )
    options = parser.parse_args()
    devices = [each for each in options.devices.split(",") if each]
    print(f"{serve(options.seconds, options.pause, options.loss, devices)} calls were answered")


if __name__ == "__main__":
    main()
