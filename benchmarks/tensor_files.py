"""Opening models from disk, and saving them: a folder of 8 files with 200 tensors each, and one file of 256 MB."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anygpu.store.tensor_files import open_file, open_folder, save, verify
from anygpu.store.tensor_files.folders import INDEX
from benchmarks.report import Figure, arguments, publish

FILES, TENSORS = 8, 200
ROUNDS = 15
LARGE = 256 << 20


def best_seconds(*works: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Of each, by turns, so that all see the same noise; the first round fills the caches."""
    best = [float("inf")] * len(works)
    for number in range(rounds + 1):
        for index, work in enumerate(works):
            begin = time.perf_counter()
            work()
            if number:
                best[index] = min(best[index], time.perf_counter() - begin)
    return best


def opening(place: Path) -> list[Figure]:
    count = FILES * TENSORS
    tensors = {f"model.layers.{each // 20}.block.{each % 20}.weight": np.full(100, each) for each in range(count)}
    folder, plain = place / "model", place / "plain"
    saved = save(folder, tensors, shard_bytes=800 * TENSORS, owners=dict.fromkeys(tensors, "benchmark"))
    if len(saved.files) != FILES:
        raise ValueError(f"there are {len(saved.files)} files")
    plain.mkdir()
    for number, file in enumerate(saved.files):
        (plain / f"{number}.safetensors").write_bytes(file.read_bytes())

    def opened_only() -> None:
        open_folder(folder).close()

    def first_values() -> None:
        with open_folder(folder) as opened:
            opened.values("model.layers.0.block.0.weight")

    def every_spec() -> None:
        with open_folder(folder) as opened:
            for name in opened.names:
                opened.spec(name)

    def without_index() -> None:
        open_folder(plain).close()

    def one_file() -> None:
        open_file(saved.files[0]).close()

    def bytes_only() -> None:
        for each in (folder / INDEX, *saved.files):
            each.read_bytes()

    names = (
        ("open the folder by its index", opened_only, 10.0),
        ("and one tensor of it", first_values, 10.0),
        ("and shape and dtype of all 1,600 tensors", every_spec, 50.0),
        ("open the folder without an index", without_index, 50.0),
        ("open one file of 200 tensors", one_file, 5.0),
        ("only read all bytes, for comparison", bytes_only, None),
    )
    seconds = best_seconds(*(work for _, work, _ in names))
    return [
        Figure(name=name, value=taken * 1e3, unit="ms", bound=bound)
        for (name, _, bound), taken in zip(names, seconds, strict=True)
    ]


def saving(place: Path) -> list[Figure]:
    x: Any = np.random.default_rng(0).integers(0, 255, LARGE, np.uint8)
    tensors = {"x": x.view(np.float32)}
    path, raw = place / "x.safetensors", place / "raw"

    def plainly() -> None:
        with raw.open("wb", buffering=0) as file:
            file.write(x.data)
            os.fsync(file.fileno())

    taken = best_seconds(
        plainly,
        lambda: save(path, tensors, hashes=False),
        lambda: save(path, tensors),
        lambda: verify(path),
        lambda: open_file(path).close(),
        rounds=4,
    )
    return [
        Figure(name="write 256 MB and wait for the disk", value=taken[0] * 1e3, unit="ms"),
        Figure(name="save them without hashes", value=taken[1] / taken[0], unit="times that"),
        Figure(name="save them with hashes", value=taken[2] / taken[0], unit="times that"),
        Figure(name="verify them", value=LARGE / taken[3] / 1e9, unit="GB/s"),
        Figure(name="open them", value=taken[4] * 1e3, unit="ms", bound=5),
    ]


def main() -> None:
    options = arguments(__doc__)
    with tempfile.TemporaryDirectory() as place:
        figures = opening(Path(place)) + saving(Path(place))
    publish(figures, options)


if __name__ == "__main__":
    main()
