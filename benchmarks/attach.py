"""A tensor of 1 GB in several processes: how long it takes to attach, what it costs them, and who outlives whom."""

from __future__ import annotations

import argparse
import secrets
import signal
import statistics
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

import anygpu as ag
from anygpu.store.shared_store import open_shared
from benchmarks.report import Figure, options_parser, publish

KEY = ("benchmark", "weights")
ELEMENTS = 1_000_000_000 // 4
ROUNDS = 9
#: Small, so that what reading takes itself does not hide what it costs.
PIECE = 1 << 17
MB = 1e6


class Memory(msgspec.Struct, frozen=True):
    """Bytes of this process, as the kernel counts them: all, its own, and its share of what several have mapped."""

    resident: int
    private: int
    proportional: int

    def since(self, before: Memory) -> Memory:
        return Memory(
            self.resident - before.resident,
            self.private - before.private,
            self.proportional - before.proportional,
        )


class Attached(msgspec.Struct, frozen=True):
    seconds: float
    grown: Memory


class ReadAll(msgspec.Struct, frozen=True):
    wrong: int
    grown: Memory


class Child:
    """A process that does one thing for each line it is sent, and answers with a line of JSON."""

    def __init__(self, function: str, *arguments: object) -> None:
        script = f"from benchmarks import attach; attach.{function}({', '.join(map(repr, arguments))})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self) -> str:
        if self.process.stdout is None or not (line := self.process.stdout.readline()):
            raise RuntimeError(f"a process of the benchmark has ended with {self.process.wait()}")
        return line

    def ask(self) -> str:
        if self.process.stdin is not None:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()


def memory() -> Memory:
    found: dict[str, int] = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        label, size, *_ = line.split()
        found[label.rstrip(":")] = int(size) * 1024
    return Memory(found["Rss"], found["Private_Clean"] + found["Private_Dirty"], found["Pss"])


def fill(values: npt.NDArray[Any]) -> None:
    for begin in range(0, len(values), PIECE):
        piece = values[begin : begin + PIECE]
        piece[:] = np.arange(begin, begin + len(piece), dtype=np.uint32)


def wrong(values: npt.NDArray[Any]) -> int:
    found = 0
    for begin in range(0, len(values), PIECE):
        piece = values[begin : begin + PIECE]
        found += int(np.count_nonzero(piece != np.arange(begin, begin + len(piece), dtype=np.uint32)))
    return found


def produce(name: str, elements: int) -> None:
    """Written in place, so that the gigabyte is there once also while it is made."""
    shared = open_shared(name)
    segment = shared.reserve((elements,), "uint32")
    fill(segment.values)
    shared.publish(KEY, segment, owner="producer")
    _tell(True)
    sys.stdin.read()


def consume(name: str) -> None:
    """Attach at once, with modules loaded and the device open; then read everything for each line that comes."""
    with ag.Store(device="numpy") as other:
        other.put("nothing", np.zeros(1, np.uint32)).host()
    before = memory()
    begin = time.perf_counter()
    store = ag.Store(name, device="numpy", shared=True)
    values = store.get(KEY[-1], namespace=KEY[0]).host()
    seconds = time.perf_counter() - begin
    _tell(Attached(seconds, memory().since(before)))
    for _ in sys.stdin:
        _tell(ReadAll(wrong(values), memory().since(before)))
    store.close()


def produce_peer(name: str, elements: int) -> None:
    peer = shared_memory.SharedMemory(name, create=True, size=elements * 4)
    values = np.ndarray((elements,), np.uint32, peer.buf)
    fill(values)
    _tell(True)
    sys.stdin.read()
    del values
    peer.close()
    peer.unlink()


def consume_peer(name: str, elements: int) -> None:
    begin = time.perf_counter()
    peer = shared_memory.SharedMemory(name)
    values = np.ndarray((elements,), np.uint32, peer.buf)
    _tell(time.perf_counter() - begin)
    sys.stdin.read()
    del values
    peer.close()
    # Its tracker would remove what this process only looks at.
    from multiprocessing import resource_tracker

    resource_tracker.unregister(f"/{name}", "shared_memory")


def _tell(what: object) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


def attach(name: str, elements: int) -> tuple[list[Attached], list[float]]:
    """Each in a process of its own, that has done nothing before but its imports; by turns with the peer."""
    peer_name = f"anygpu-peer-{secrets.token_hex(4)}"
    peer = Child("produce_peer", peer_name, elements)
    peer.answer()
    ours, peers = [], []
    for _ in range(ROUNDS):
        child = Child("consume", name)
        ours.append(msgspec.json.decode(child.answer(), type=Attached))
        child.end()
        child = Child("consume_peer", peer_name, elements)
        peers.append(msgspec.json.decode(child.answer(), type=float))
        child.end()
    peer.end()
    return ours, peers


def figures(elements: int) -> list[Figure]:
    name = f"benchmark {secrets.token_hex(8)}"
    producer = Child("produce", name, elements)
    producer.answer()
    attached, peers = attach(name, elements)
    consumers = [Child("consume", name) for _ in range(2)]
    for consumer in consumers:
        attached.append(msgspec.json.decode(consumer.answer(), type=Attached))
    # The first reads alone; the second's pages are those of the first, which shows when the first looks again.
    reads = [msgspec.json.decode(child.ask(), type=ReadAll) for child in (*consumers, consumers[0])]
    producer.kill()
    after_kill = [msgspec.json.decode(child.ask(), type=ReadAll) for child in consumers]
    late = Child("consume", name)
    late.answer()
    after_kill.append(msgspec.json.decode(late.ask(), type=ReadAll))
    with open_shared(name) as shared:
        path = shared.path
    for child in (*consumers, late):
        child.end()
    seconds = [each.seconds for each in attached]
    size = elements * 4 / MB
    return [
        Figure(name=f"attach to {size:,.0f} MB (median of {len(seconds)})", value=_ms(seconds), unit="ms", bound=5),
        Figure(name="the same, worst", value=max(seconds) * 1e3, unit="ms"),
        Figure(name="multiprocessing.shared_memory (median)", value=_ms(peers), unit="ms"),
        Figure(
            name="memory that attaching takes (worst)",
            value=max(each.grown.resident for each in attached) / MB,
            unit="MB",
            bound=8,
        ),
        Figure(name="resident when all was read", value=reads[-1].grown.resident / MB, unit="MB"),
        Figure(name="private when all was read", value=reads[-1].grown.private / MB, unit="MB", bound=8),
        Figure(name="share of it, mapped by three processes", value=reads[-1].grown.proportional / MB, unit="MB"),
        Figure(name="wrong values", value=sum(each.wrong for each in reads), unit="values", bound=0.5),
        Figure(
            name="wrong values after the producer was killed",
            value=sum(each.wrong for each in after_kill),
            unit="values",
            bound=0.5,
        ),
        Figure(name="left in memory after the last", value=float(path.exists()), unit="stores", bound=0.5),
    ]


def _ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e3


def _arguments() -> argparse.Namespace:
    parser = options_parser(__doc__)
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="4 bytes each")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    publish(figures(options.elements), options)


if __name__ == "__main__":
    main()
