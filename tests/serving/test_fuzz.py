"""The command for many mutated requests, with a few: `python -m benchmarks.serving_fuzz` sends 100,000."""

from __future__ import annotations

import os

from benchmarks.serving_client import Connection, infer_request
from benchmarks.serving_fuzz import TYPED, fuzz
from tests.serving.conftest import Serve, X, double


def test_mutated_requests_get_typed_answers(serve: Serve) -> None:
    server = serve({"score": double})
    outcome, _ = fuzz(server.port, os.getpid(), 1000, seed=5)
    assert outcome.wrong == []
    assert set(outcome.statuses) <= TYPED | {"closed", "head"}
    assert outcome.statuses[400] > 300
    with Connection(server.port) as connection:
        assert connection.ask(infer_request("score", {"x": X})).status == 200
