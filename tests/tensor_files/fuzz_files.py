"""Files that somebody has tampered with. Run it alone: `python -m tests.tensor_files.fuzz_files --count 1000000`.

Every file is written, opened through the public functions and, when it is accepted, read to its last byte and compared
with what the package safetensors makes of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import safetensors

from anygpu.errors import InvalidOption, InvalidTensorFile
from anygpu.store.tensor_files import TensorFile, open_file, open_folder, save
from anygpu.store.tensor_files.header import BITS, KINDS

LIMIT_MIB = 16
WIDTHS = (
    0,
    1,
    2,
    7,
    8,
    9,
    63,
    64,
    65,
    255,
    256,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
NASTY: tuple[Any, ...] = (
    *WIDTHS,
    *(
        -1,
        -(2**63),
        10**30,
        1.0,
        1.5,
        1e300,
        None,
        True,
        False,
        "",
        "x",
        "F32",
        "BF16",
        "F4",
        "BOOL",
        "é" * 300,
        "\x00",
    ),
    *([], [[]], [0], [1] * 65, [0] * 64, [0, 2**62, 2**62], [2**63 - 1] * 64, {}, {"dtype": "F32"}, {"": ""}),
    {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},
    {"dtype": "F64", "shape": [], "data_offsets": [0, 8]},
)
#: Pieces of text that are not JSON as its writers mean it.
TEXTS = (
    *(b"\\", b'"', b'\\"', b"\\u0000", b"\\ud800", b"\\ud83d\\ude00", b"\xff", b"\xed\xa0\x80", b"\x00", b"\n", b"  "),
    *(b"[" * 3000, b"{" * 50, b"//", b"NaN", b"-0", b"1e2", b"{}", b",", b":"),
)
NAMES = ("x", "y", "__metadata__", "dtype", "shape", "data_offsets", "", "a\\b", 'a"b', "../x", "weight_map", "é")


class Report(NamedTuple):
    outcomes: Counter[str]
    #: Whatever else came out, which must be nothing.
    surprises: list[str]
    slowest_seconds: float
    growth_bytes: int
    most_bytes: int


def originals(rng: random.Random, folder: Path) -> list[bytes]:
    """Small whole files, of ours and as others write them."""
    found = []
    for number in range(60):
        values = np.random.default_rng(number)
        tensors = {}
        for name in rng.sample([f"layer.{each}.weight" for each in range(12)], rng.randint(0, 6)):
            shape = tuple(rng.choice((0, 1, 2, 3, 5)) for _ in range(rng.randint(0, 3)))
            dtype = rng.choice([dtype for dtype in KINDS.values() if dtype != "bfloat16"])
            tensors[name] = (values.random(shape) * 4).astype(dtype)
        path = folder / "original.safetensors"
        metadata = {"made": 'by "fuzz"\\'} if number % 2 else {}
        save(path, tensors, metadata=metadata, hashes=number % 3 == 0, owners=dict.fromkeys(list(tensors)[:1], "o"))
        data = path.read_bytes()
        if number % 4 == 0:  # no records, no padding, other types
            table, numbers = _parts(data)
            table.pop("__metadata__", None)
            for entry in table.values():
                alike = [kind for kind, bits in BITS.items() if bits == BITS[entry["dtype"]] and kind != "BOOL"]
                entry["dtype"] = rng.choice(alike) if entry["dtype"] != "BOOL" else "BOOL"
            data = _joined(json.dumps(table).encode(), numbers)
        found.append(data)
    return found


def tampered(data: bytes, rng: random.Random) -> bytes:
    """The same with one to four changes, of bytes or, more often, of what they stand for."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        change = rng.choice((_other_bytes, _other_length, _other_end, _other_table, _other_table, _other_table, _twice))
        data = change(data, rng)
    return data


def _other_bytes(data: bytes, rng: random.Random) -> bytes:
    """Mostly of the header."""
    length = min(int.from_bytes(data[:8], "little"), len(data) - 8) if len(data) > 8 else 0
    region = 8 + length if length > 0 and rng.random() < 0.9 else len(data)
    if not region:
        return rng.randbytes(rng.randrange(20))
    at, end = sorted((rng.randrange(region), rng.randrange(region)))
    match rng.randrange(7):
        case 0:
            changed = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        case 1:
            changed = data[:at] + rng.randbytes(1) + data[at + 1 :]
        case 2:
            changed = data[:at] + data[end:]
        case 3:
            changed = data[:end] + data[at:end] + data[end:]
        case 4:
            changed = data[:at] + rng.choice(TEXTS) + data[at:]
        case 5:
            piece = rng.choice(TEXTS)
            changed = data[:at] + piece + data[at + len(piece) :]
        case _:
            digits = [place for place in range(8, region) if 48 <= data[place] <= 57]
            if not digits:
                return data
            at = rng.choice(digits)
            changed = data[:at] + rng.choice((b"0", b"1", b"8", b"9", b"99", b"-1", b"", b"1e1")) + data[at + 1 :]
    if rng.random() < 0.7 and at >= 8:  # so that it gets past the length
        grown = length + len(changed) - len(data)
        changed = max(grown, 0).to_bytes(8, "little") + changed[8:]
    return changed


def _other_length(data: bytes, rng: random.Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    new = rng.choice((length + rng.randint(-9, 9), rng.choice(WIDTHS), len(data), len(data) - 8, len(data) - 7))
    return max(new, 0).to_bytes(9, "little")[:8] + data[8:]


def _other_end(data: bytes, rng: random.Random) -> bytes:
    match rng.randrange(4):
        case 0:
            return data[: rng.randrange(len(data) + 1)]
        case 1:
            return data[: -rng.randint(1, 8)]
        case 2:
            return data + rng.randbytes(rng.randint(1, 9))
    return data + bytes(rng.choice((1, 64, 4096)))


def _other_table(data: bytes, rng: random.Random) -> bytes:
    try:
        table, numbers = _parts(data)
    except ValueError:
        return _other_bytes(data, rng)
    return _joined(json.dumps(_changed(table, rng)).encode(errors="surrogatepass"), numbers, pad=rng.random() < 0.5)


def _twice(data: bytes, rng: random.Random) -> bytes:
    """A key that is there two times, at any level."""
    try:
        table, numbers = _parts(data)
    except ValueError:
        return _other_bytes(data, rng)
    if not isinstance(table, dict) or not table:
        return data
    name = rng.choice(list(table))
    value = table[name]
    if isinstance(value, dict) and value and rng.random() < 0.5:
        key = rng.choice(list(value))
        again = rng.choice((value[key], rng.choice(NASTY)))
        inner = f"{{{json.dumps(key)}: {json.dumps(again)}, {json.dumps(value)[1:]}"
        table[name] = "@"
        text = json.dumps(table).replace('"@"', inner)
    else:
        again = rng.choice((value, {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}))
        text = f"{{{json.dumps(name)}: {json.dumps(again)}, {json.dumps(table)[1:]}"
    return _joined(text.encode(errors="surrogatepass"), numbers)


def _changed(table: Any, rng: random.Random) -> Any:
    """With one value, somewhere, deleted, moved or replaced."""
    if isinstance(table, dict) and rng.random() < 0.15:
        return {**table, rng.choice(NAMES): rng.choice(NASTY)}
    holder: Any = table
    while isinstance(holder, dict | list) and holder:
        at = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        if isinstance(holder[at], dict | list) and holder[at] and rng.random() < 0.85:
            holder = holder[at]
            continue
        match rng.randrange(5):
            case 0:
                del holder[at]
            case 1:
                if isinstance(holder, dict):
                    holder[rng.choice(NAMES)] = holder.pop(at)
                else:
                    holder.insert(at, holder[at])
            case _:
                holder[at] = _another(holder[at], rng)
        return table
    return rng.choice(NASTY)


def _another(value: Any, rng: random.Random) -> Any:
    """Mostly of the same type, so that it gets past the types and to the rules."""
    if rng.random() < 0.2:
        return rng.choice(NASTY)
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((value - 1, value + 1, value * 2, rng.randrange(16), rng.choice(WIDTHS)))
        case str():
            return rng.choice((*BITS, *NAMES, value + "x"))
        case list():
            return rng.choice((value[::-1], value * 2, value[1:], [rng.choice(WIDTHS) for _ in value]))
    return rng.choice(NASTY)


def _parts(data: bytes) -> tuple[Any, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        return json.loads(data[8:end]), data[end:]
    except RecursionError:
        raise ValueError("too deep") from None


def _joined(text: bytes, numbers: bytes, *, pad: bool = False) -> bytes:
    text += b" " * (-(8 + len(text)) % 8 if pad else 0)
    return len(text).to_bytes(8, "little") + text + numbers


def mistakes(data: bytes, opened: TensorFile) -> list[str]:
    """What is wrong with a file that was accepted: it must be what the format says, to the last byte."""
    length = int.from_bytes(data[:8], "little")
    pairs = json.loads(data[8 : 8 + length], object_pairs_hook=_once)
    table = {name: value for name, value in pairs.items() if name != "__metadata__"}
    if set(opened.names) != set(table):
        return ["the names are not those of the header"]
    total = 0
    for name, entry in table.items():
        start, stop = entry["data_offsets"]
        total += stop - start
        numbers = data[8 + length + start : 8 + length + stop]
        if BITS[entry["dtype"]] % 8:
            continue
        bits = opened.bits(name)
        if bits.tobytes() != numbers or bits.shape != tuple(entry["shape"]) or bits.flags.writeable:
            return [f"{name!r} has other bytes"]
        if entry["dtype"] in KINDS:
            _read(opened, name)
        opened.hash(name), opened.owner(name)
    if total != len(data) - 8 - length:
        return ["not all bytes belong to a tensor"]
    return _compared(data, table)


def _compared(data: bytes, table: dict[str, Any]) -> list[str]:
    parse: Any = safetensors.deserialize
    try:
        found = dict(parse(data))
    except safetensors.SafetensorError as error:
        return [f"the package safetensors does not take it: {error}"]
    for name, entry in table.items():
        if found[name]["dtype"] != entry["dtype"] or found[name]["shape"] != entry["shape"]:
            return [f"the package safetensors sees another {name!r}"]
    return []


def _read(opened: TensorFile, name: str) -> None:
    try:
        values = opened.values(name)
    except InvalidTensorFile:
        if opened.spec(name).dtype != "bool":
            raise
        return
    if values.size:
        values.ravel()[-1].item()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("accepted with a name twice")
    return found


class _Folder:
    """A model of two files whose index is tampered with."""

    def __init__(self, place: Path) -> None:
        self.path = place
        save(place, {f"t{each}": np.arange(each) for each in range(6)}, shard_bytes=64)
        self._index = next(place.glob("*.json"))
        self._whole = _joined(self._index.read_bytes(), b"")

    def attempt(self, rng: random.Random) -> str:
        self._index.write_bytes(tampered(self._whole, rng)[8:])
        try:
            opened = open_folder(self.path)
        except InvalidTensorFile:
            return "index refused"
        with opened:
            for name in opened.names:
                try:
                    opened.values(name)
                except InvalidTensorFile:  # it is not where the index says
                    return "index refused later"
        return "index accepted"


def fuzz(count: int, seed: int) -> Report:
    rng = random.Random(seed)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        sources = originals(rng, Path(place))
        path = Path(place) / "x.safetensors"
        folder = _Folder(Path(place) / "model")
        for data in sources:
            path.write_bytes(data)
            with open_file(path) as opened:
                if found := mistakes(data, opened):
                    raise ValueError(f"an original is wrong: {found}")
        outcomes: Counter[str] = Counter()
        surprises: list[str] = []
        slowest = 0.0
        process = psutil.Process()
        gc.collect()
        before = most = process.memory_info().rss
        for number in range(count):
            data = b""
            start = time.perf_counter()
            try:
                if number % 16 == 0:
                    outcomes[folder.attempt(rng)] += 1
                else:
                    data = tampered(rng.choice(sources), rng)
                    path.write_bytes(data)
                    start = time.perf_counter()
                    outcomes[_attempt(path, data, surprises)] += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what we are looking for
                surprises.append(f"{type(error).__name__}: {error} for {data[:2000]!r}")
            slowest = max(slowest, time.perf_counter() - start)
            if number % 500 == 0:
                most = max(most, process.memory_info().rss)
    gc.collect()
    growth = process.memory_info().rss - before
    return Report(outcomes, surprises, slowest, growth, max(most - before, growth))


def _attempt(path: Path, data: bytes, surprises: list[str]) -> str:
    try:
        opened = open_file(path)
    except InvalidTensorFile:
        return "refused"
    with opened:
        surprises += [f"{each} in {data[:2000]!r}" for each in mistakes(data, opened)]
        try:
            opened.values("no such name")
        except InvalidOption:
            return "accepted"
    return "accepted"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    report = fuzz(arguments.count, arguments.seed)
    lines = [
        f"{arguments.count:,} files in {time.perf_counter() - begin:.0f} s: "
        + ", ".join(f"{count:,} {outcome}" for outcome, count in report.outcomes.most_common()),
        f"other exceptions, and accepted files that are wrong: {len(report.surprises)}",
        *(f"  {surprise}" for surprise in report.surprises[:10]),
        f"slowest: {report.slowest_seconds * 1e3:.1f} ms",
        f"memory: {report.growth_bytes / 2**20:+.1f} MiB at the end, {report.most_bytes / 2**20:+.1f} MiB at most",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if report.surprises or report.most_bytes > LIMIT_MIB << 20 else 0


if __name__ == "__main__":
    sys.exit(main())
