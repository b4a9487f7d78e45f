"""Short computations that show what a setting costs on this machine: three seconds at most, in all.

They run on a thread of their own, because a thread's number of threads is its own, and draw no random numbers: the
process is afterwards as it was.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from anygpu.errors import InvalidOption
from anygpu.pytorch import torch_slots
from anygpu.pytorch.doctor_facts import Measurements
from anygpu.pytorch.torch_settings import settings

T = TypeVar("T")

#: For all of them, in seconds.
BUDGET = 2.0
#: Of the products. Small, so that most calls come through without being interrupted on a busy machine.
_SIZE = 384


def measure(thread_counts: Sequence[int], budget: float = BUDGET) -> Measurements:
    """What computations take, with each of these numbers of threads where that matters."""
    begin = time.perf_counter()
    now = torch.get_num_threads()
    each = budget / (len(thread_counts) * 2 + 8)
    by_threads = dict.fromkeys(thread_counts, float("inf"))
    for count in (*thread_counts, *thread_counts):  # twice, because what else goes on changes in between
        by_threads[count] = min(by_threads[count], _with_threads(count, lambda: _product_seconds(each)))
    denormals, bfloat16, medium, channels_last = _with_threads(now, lambda: _ratios(each * 2))
    return Measurements(
        product_by_threads=by_threads,
        denormals=denormals,
        bfloat16=bfloat16,
        medium=medium,
        channels_last=channels_last,
        seconds=time.perf_counter() - begin,
    )


def _with_threads(count: int, call: Callable[[], T]) -> T:
    """What it returns on a thread with so many; what new threads begin with is as before."""
    found: list[T] = []
    errors: list[BaseException] = []
    ready = threading.Event()

    def run() -> None:
        try:
            usual = torch.get_num_threads()
            torch.set_num_threads(count)
            torch_slots.on_a_new_thread(lambda: torch.set_num_threads(usual))
            ready.set()
            with torch.no_grad():
                found.append(call())
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            errors.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="anygpu doctor")
    with torch_slots.changing:
        thread.start()
        ready.wait()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


def _product_seconds(seconds: float) -> float:
    left = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=torch.float32, device="cpu").reshape(_SIZE, _SIZE)
    return best_of([lambda: left @ left], seconds)[0]


def _ratios(seconds: float) -> tuple[float, float, float | None, float]:
    left = torch.linspace(-1.0, 1.0, _SIZE * _SIZE, dtype=torch.float32, device="cpu").reshape(_SIZE, _SIZE)
    half = left.to(torch.bfloat16)
    # Small enough for one thread: whether tiny numbers are flushed to zero is each thread's own setting.
    normal, tiny = torch.full((16384,), 1e-10), torch.full((16384,), 1e-39)
    usual, slow = best_of([lambda: normal * 0.5, lambda: tiny * 0.5], seconds)
    exact, fast = best_of([lambda: left @ left, lambda: half @ half], seconds)
    medium = None
    # Refused when another block of the process has a precision of its own.
    with contextlib.suppress(InvalidOption), settings(matmul_precision="medium"):
        medium = exact / best_of([lambda: left @ left], seconds / 2)[0]
    images = torch.linspace(-1.0, 1.0, 32 * 56 * 56, dtype=torch.float32, device="cpu").reshape(1, 32, 56, 56)
    weights = torch.linspace(-1.0, 1.0, 32 * 32 * 9, dtype=torch.float32, device="cpu").reshape(32, 32, 3, 3)
    images_last = images.to(memory_format=torch.channels_last)
    weights_last = weights.to(memory_format=torch.channels_last)
    convolve = torch.nn.functional.conv2d
    first, last = best_of([lambda: convolve(images, weights), lambda: convolve(images_last, weights_last)], seconds)
    return slow / usual, exact / fast, medium, first / last


def best_of(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """The best time of each, taking turns for so many seconds, and twice at least."""
    best = [float("inf")] * len(calls)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 2 or time.perf_counter() < end:
        for number, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[number] = min(best[number], time.perf_counter() - begin)
        rounds += 1
    return best
