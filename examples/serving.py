"""Serve a NumPy function over HTTP: `python -m examples.serving [--port 8000]`, with the extra `serve`.

Requests are those of the Open Inference Protocol, so clients of KServe and Triton can ask. Without a port it serves on
a free one, asks itself with plain `urllib`, and stops.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from typing import Any

import numpy as np

import anygpu as ag

WEIGHTS = np.cos(np.arange(12, dtype=np.float32)).reshape(4, 3)


def classify(x: float32[-1, 4]) -> dict[str, Any]:  # type: ignore[name-defined] # noqa: F821
    """The probabilities of three classes for each row, and the likeliest."""
    scores = x @ WEIGHTS
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return {"probabilities": powers / powers.sum(axis=1, keepdims=True), "best": scores.argmax(axis=1)}


def ask(url: str, rows: list[list[float]]) -> dict[str, Any]:
    """What a caller elsewhere would do, in JSON; large tensors are better sent as binary data."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 4], "data": rows}
    request = urllib.request.Request(f"{url}/v2/models/classify/infer", json.dumps({"inputs": [tensor]}).encode())
    with urllib.request.urlopen(request) as response:
        found = json.load(response)
    return {each["name"]: np.reshape(each["data"], each["shape"]) for each in found["outputs"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()
    models, examples = {"classify": classify}, {"classify": (np.ones((2, 4), np.float32),)}
    if options.port is not None:
        ag.serve(models, port=options.port, examples=examples)
        return
    with ag.Server(models, port=0, examples=examples, notice=0.0) as server:
        answer = ask(server.url, [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
        print("best:", answer["best"].tolist())
        print("probabilities:", answer["probabilities"].round(3).tolist())
    print("stopped:", server.finished)


if __name__ == "__main__":
    main()
