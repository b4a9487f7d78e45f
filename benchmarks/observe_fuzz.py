"""Mutated questions at an observed process: `python -m benchmarks.observe_fuzz [--count 100000] [--json] [--check]`.

Every message is a good question with some of it changed, a length that lies, or noise. The process answers what is
still a question, closes the connection on everything else, never hangs, and keeps its memory, its threads and its
files. The seed is printed with what went wrong, and `--seed` does the same again.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable

import msgspec
import psutil

from anygpu.observe.looking import ObservedProcess, observed_processes
from anygpu.observe.sockets import MOST_QUESTION, VARIABLE, Question, framed
from benchmarks.report import Figure, options_parser, publish, say

#: Part of the messages after which memory has been taken that stays in use.
_WARM = 0.2
#: How long a connection may be silent before it counts as hung.
_PATIENCE = 120.0
_ODD: tuple[object, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63 - 1,
    2**63,
    2**64 - 1,
    1.5,
    float("nan"),
    "",
    "x" * 900,
    b"\xff",
    [],
    {},
    [[[]]],
)

_OBSERVED = """
import sys
import numpy as np
import anygpu as ag
from anygpu import observe
observe.start()
double = ag.offload(lambda x: x * 2)
for _ in range(100):
    double(np.ones(8))
print(flush=True)
sys.stdin.read()
"""


def _bytes_changed(chance: random.Random) -> bytes:
    message = bytearray(framed(Question(chance.choice((0, 5, None)))))
    for _ in range(chance.randint(1, 6)):
        position = chance.randrange(len(message) or 1)
        match chance.randrange(3):
            case 0:
                message[position : position + 1] = bytes([chance.randrange(256)])
            case 1:
                del message[position : position + chance.randint(1, 8)]
            case _:
                message[position:position] = chance.randbytes(chance.randint(1, 8))
    return bytes(message)


def _content_changed(chance: random.Random) -> bytes:
    """A right length, and good MessagePack of something else."""
    fields: dict[object, object] = {"ask": "snapshot", "since": 0, "token": ""}
    for _ in range(chance.randint(1, 3)):
        key = chance.choice(("ask", "since", "token", "more", "", "__class__"))
        if chance.random() < 0.2:
            fields.pop(key, None)
        else:
            fields[key] = chance.choice(_ODD)
    content = msgspec.msgpack.encode(chance.choice((fields, list(fields.values()), chance.choice(_ODD))))
    return struct.pack(">I", len(content)) + content


def _length_lies(chance: random.Random) -> bytes:
    content = framed(Question(0))[4:]
    length = chance.choice(
        (0, 1, len(content) - 1, len(content) + 1, MOST_QUESTION, MOST_QUESTION + 1, 2**31, 2**32 - 1)
    )
    return struct.pack(">I", length) + content * chance.choice((0, 1, 1, 3, 200))


def _nested(chance: random.Random) -> bytes:
    content = chance.choice((b"\x91", b"\x81\xa1a", b"\xdc\x00\x01")) * chance.randint(1, 340)
    return struct.pack(">I", min(len(content), MOST_QUESTION)) + content


def _noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randint(0, 3000))


MUTATIONS: tuple[Callable[[random.Random], bytes], ...] = (
    _bytes_changed,
    _content_changed,
    _length_lies,
    _nested,
    _noise,
)


def sent(path: str, message: bytes, chance: random.Random) -> str:
    """What became of it: "answered", "refused" or "hung"."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_PATIENCE)
        got = 0
        try:
            connection.connect(path)
            if len(message) > 1 and chance.random() < 0.2:  # in two parts
                middle = chance.randrange(1, len(message))
                connection.sendall(message[:middle])
                message = message[middle:]
            connection.sendall(message)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                got += len(part)
        except TimeoutError:
            return "hung"
        except OSError:  # it was closed while we were still sending
            pass
        return "answered" if got else "refused"


def fuzz(process: ObservedProcess, count: int, seed: int) -> tuple[Counter[str], list[Figure]]:
    """Sends so many, and looks whether the process is as it was."""
    path = os.fspath(process.path)
    chance = random.Random(seed)
    there = psutil.Process(process.pid)
    outcomes: Counter[str] = Counter()
    threads, files, memory, longest = there.num_threads(), there.num_fds(), 0, 0.0
    idle: list[socket.socket] = []
    for number in range(count):
        outcomes[sent(path, chance.choice(MUTATIONS)(chance), chance)] += 1
        if number % 97 == 0:  # somebody who connects, and says hardly anything
            slow = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                slow.settimeout(_PATIENCE)
                slow.connect(path)
                slow.sendall(b"\0")
            idle.append(slow)
            if len(idle) > 40:
                idle.pop(0).close()
        if number % 500 == 0:
            begin = time.perf_counter()
            process.ask(deadline=_PATIENCE)
            longest = max(longest, time.perf_counter() - begin)
        if number == int(count * _WARM):
            memory = there.memory_info().rss
    for each in idle:
        each.close()
    grown = there.memory_info().rss - memory
    process.ask(deadline=_PATIENCE)
    deadline = time.monotonic() + _PATIENCE
    while there.num_fds() > files and time.monotonic() < deadline:
        time.sleep(0.05)
    figures = [
        Figure(name="messages", value=count, unit=""),
        Figure(name="refused", value=outcomes["refused"], unit=""),
        Figure(name="still a question, and answered", value=outcomes["answered"], unit=""),
        Figure(name="hung", value=outcomes["hung"], unit="", bound=0.5),
        Figure(name="longest good answer meanwhile", value=longest * 1e3, unit="ms"),
        Figure(name="memory that the process has grown by", value=grown / (1 << 20), unit="MiB", bound=2.0),
        Figure(name="threads more", value=there.num_threads() - threads, unit="", bound=0.5),
        Figure(name="files more", value=there.num_fds() - files, unit="", bound=0.5),
    ]
    return outcomes, figures


def main() -> None:
    parser = options_parser(__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=18)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ag-") as folder:
        os.environ[VARIABLE] = folder
        child = subprocess.Popen([sys.executable, "-c", _OBSERVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        try:
            (process,) = observed_processes()
            process.ask(deadline=_PATIENCE)
            say(f"seed {options.seed}")
            _, figures = fuzz(process, options.count, options.seed)
        finally:
            child.communicate()
        if child.returncode != 0:
            raise RuntimeError(f"the observed process has ended with {child.returncode}; seed {options.seed}")
    publish(figures, options)


if __name__ == "__main__":
    main()
