"""The benchmark's function under LitServe, whose workers import its class from here."""

from __future__ import annotations

from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np

from benchmarks.serving_process import score


class Score(litserve.LitAPI):
    def setup(self, device: object) -> None:
        """Nothing."""

    def decode_request(self, request):  # type: ignore[no-untyped-def] # FastAPI reads annotations
        return np.array(request["data"], np.float32)

    def predict(self, x: Any) -> Any:
        return score(x)

    def encode_response(self, output: Any) -> Any:
        return {"data": output.tolist()}


def run(port: int) -> None:
    server = litserve.LitServer(Score(api_path="/infer"), accelerator="cpu")
    server.run(port=port, host="127.0.0.1", generate_client_file=False, log_level="warning")
