"""Bytes that somebody has tampered with. Run it alone: `python -m tests.program.fuzz_wire --count 100000`."""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections import Counter
from typing import Any, NamedTuple, get_args

import msgspec
import psutil

from anygpu.errors import InvalidProgram
from anygpu.program.dtypes import DTYPES
from anygpu.program.functions import BinaryFunction, LinearFunction, ReduceFunction, UnaryFunction
from anygpu.program.graph import Program, program_cost, to_text
from anygpu.program.primitives import PRIMITIVES
from anygpu.program.wire import from_bytes, to_bytes
from tests.program.sampling import random_program

INTEGERS = (0, 1, 63, 64, 65, 255, -1, -(2**31), -(2**63), 2**31, 2**32, 2**57, 2**58, 2**62, 2**63 - 1, 2**64 - 1)
WORDS = (
    *DTYPES,
    *(fn for family in (UnaryFunction, BinaryFunction, ReduceFunction, LinearFunction) for fn in get_args(family)),
    *(each.__name__.lower() for each in PRIMITIVES),
)
NASTY: tuple[Any, ...] = (
    *INTEGERS,
    *(float("nan"), float("inf"), -0.0, 1.5, None, True, False, "", "é" * 300, "exp", "float32", "bool", "irfft"),
    *(b"", b"\xff" * 17, [], [[]], {}, {"a": 1}, [0] * 70, [2**62] * 64, [1] * 64, [0] * 5000),
    *(["input", [2], "float64"], ["select"], ["concatenate", 0], ["linear", "svd", 2, True], ["slice", [0], [1], [1]]),
    *(["reshape", [0, 2**62]], ["pad", [2**63], [2**63]], ["windows", 0, 1, 2**63], ["unary", "nothing"]),
)

LIMIT_MIB = 16


class Report(NamedTuple):
    accepted: int
    #: Bytes that are not even a record of the right types, and programs that break a rule.
    malformed: int
    wrong: int
    #: Whatever else came out, which must be nothing.
    surprises: list[str]
    slowest_seconds: float
    growth_bytes: int
    most_bytes: int


def tampered(data: bytes, rng: random.Random) -> bytes:
    """The same with one to four changes, of bytes or, more often, of what they stand for."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice((_with_other_bytes, _with_other_values, _with_other_values))(data, rng)
    return data


def _with_other_bytes(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return rng.randbytes(rng.randrange(20))
    at, end = sorted((rng.randrange(len(data)), min(rng.randrange(len(data)), len(data))))
    match rng.randrange(7):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + rng.randbytes(1) + data[at + 1 :]
        case 2:
            return data[:at]
        case 3:
            return data[:at] + data[end:]
        case 4:
            return data[:end] + data[at:end] + data[end:]
        case 5:
            return data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:]
    header = rng.choice((b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\x91" * 3000))
    return data[:at] + header + data[at:]


def _with_other_values(data: bytes, rng: random.Random) -> bytes:
    try:
        record = msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return _with_other_bytes(data, rng)
    holder: Any = record
    while isinstance(holder, list) and holder:
        at = rng.randrange(len(holder))
        if isinstance(holder[at], list) and holder[at] and rng.random() < 0.8:
            holder = holder[at]
            continue
        match rng.randrange(5):
            case 0:
                del holder[at]
            case 1:
                holder.insert(at, holder[at])
            case 2:
                other = rng.randrange(len(holder))
                holder[at], holder[other] = holder[other], holder[at]
            case _:
                holder[at] = _another(holder[at], rng)
        break
    try:
        return msgspec.msgpack.encode(record)
    except (UnicodeEncodeError, RecursionError, OverflowError):
        return data


def _another(value: Any, rng: random.Random) -> Any:
    """Mostly of the same type, so that it gets past the types and to the rules."""
    if rng.random() < 0.2:
        return rng.choice(NASTY)
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((value - 1, value + 1, rng.randrange(8), rng.choice(INTEGERS)))
        case str():
            return rng.choice(WORDS)
        case bytes():
            return rng.choice((value[1:], value + b"\x02", rng.randbytes(len(value))))
        case list():
            return rng.choice((value[::-1], value * 2, value[1:], [rng.choice(INTEGERS) for _ in value]))
    return rng.choice(NASTY)


def fuzz(count: int, seed: int) -> Report:
    rng = random.Random(seed)
    sources = [to_bytes(random_program(rng, size=rng.choice((3, 14, 40)))) for _ in range(200)]
    for data in sources:
        from_bytes(data)
    process = psutil.Process()
    gc.collect()
    before = most = process.memory_info().rss
    outcomes: Counter[str] = Counter()
    surprises: list[str] = []
    slowest = 0.0
    for number in range(count):
        data = tampered(rng.choice(sources), rng)
        start = time.perf_counter()
        program: Program | None = None
        try:
            program = from_bytes(data)
        except InvalidProgram as error:
            outcomes["malformed" if "are not a program" in str(error) else "wrong"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are looking for
            surprises.append(f"{type(error).__name__}: {error} for {data.hex()[:2000]}")
        slowest = max(slowest, time.perf_counter() - start)
        if program is not None:
            outcomes["accepted"] += 1
            surprises += mistakes(program)
        if number % 500 == 0:
            most = max(most, process.memory_info().rss)
    gc.collect()
    growth = process.memory_info().rss - before
    counts = outcomes["accepted"], outcomes["malformed"], outcomes["wrong"]
    return Report(*counts, surprises, slowest, growth, max(most - before, growth))


def mistakes(program: Program) -> list[str]:
    """What goes wrong with a program that was accepted, for everybody who reads it."""
    try:
        if from_bytes(to_bytes(program)) != program:
            return [f"it is another one when it is read again: {program!r}"]
        to_text(program)
        program_cost(program)
    except Exception as error:  # noqa: BLE001 - as above
        return [f"{type(error).__name__}: {error} in {program!r}"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = fuzz(arguments.count, arguments.seed)
    lines = [
        f"{arguments.count:,} byte forms: {report.accepted:,} are still programs",
        f"InvalidProgram: {report.malformed:,} malformed, {report.wrong:,} against a rule of shapes or types",
        f"other exceptions: {len(report.surprises)}",
        *(f"  {surprise}" for surprise in report.surprises[:10]),
        f"slowest: {report.slowest_seconds * 1e3:.1f} ms",
        f"memory: {report.growth_bytes / 2**20:+.1f} MiB at the end, {report.most_bytes / 2**20:+.1f} MiB at most",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.surprises or report.most_bytes > LIMIT_MIB << 20 else 0


if __name__ == "__main__":
    sys.exit(main())
