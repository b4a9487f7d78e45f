"""A file that need not fit into memory: of every row its entropy and its largest probability, as a softmax has them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


def certainty(logits: Any) -> Any:
    shifted = logits - logits.max(axis=1, keepdims=True)
    weights = np.exp(shifted)
    total = weights.sum(axis=1)
    entropy = np.log(total) - (weights * shifted).sum(axis=1) / total
    return np.stack([entropy, 1 / total], axis=1)


def inputs(rng: np.random.Generator) -> list[Any]:
    return [rng.normal(scale=3, size=(1000, 64)).astype(np.float32)]


def main(megabytes: int = 200) -> None:
    """The function above knows nothing of files or chunks; `stream` cuts it where that is proved to be right."""
    import anygpu as ag

    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "logits.npy"), Path(folder, "certainty.npy")
        rows = megabytes * 10**6 // (4 * 256)
        logits = np.lib.format.open_memmap(source, "w+", np.float32, (rows, 256))
        logits[:1000] = np.random.default_rng(0).normal(scale=3, size=(1000, 256))
        logits.flush()
        streamed = ag.stream(certainty, source, result, memory="100MB", progress=True)
        print(streamed)
        right = np.allclose(np.load(result)[:1000], certainty(logits[:1000]), rtol=1e-4, atol=1e-5)
        print("agrees with NumPy" if right else "DIFFERS from NumPy")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
