"""The sentence encoder as others run it: written in torch, and as an ONNX model for onnxruntime."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from examples.encoders.minilm import EPSILON, HEADS, WIDTH, layers_in

#: Token ids and which of them are there, to one embedding a row.
Encoder = Callable[[np.ndarray, np.ndarray], np.ndarray]


def torch_function(weights: Mapping[str, np.ndarray]) -> Callable[..., Any]:
    """The same model with torch's own functions, of torch tensors."""
    import torch
    from torch.nn import functional

    w = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        return functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], EPSILON)

    def heads(x: Any) -> Any:
        return x.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)

    def encode(ids: Any, there: Any) -> Any:
        x = functional.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(layers_in(w)):
            at = f"encoder.layer.{layer}"
            q, k, v = (heads(linear(x, f"{at}.attention.self.{name}")) for name in ("query", "key", "value"))
            seen = functional.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None, :])
            seen = linear(seen.transpose(1, 2).flatten(-2), f"{at}.attention.output.dense")
            x = norm(x + seen, f"{at}.attention.output.LayerNorm")
            wide = functional.gelu(linear(x, f"{at}.intermediate.dense"))
            x = norm(x + linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        weight = there[:, :, None].to(x.dtype)
        return functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)

    return encode


def in_torch(weights: Mapping[str, np.ndarray]) -> Encoder:
    import torch

    function = torch_function(weights)

    def encode(ids: np.ndarray, there: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found: np.ndarray = function(torch.from_numpy(ids), torch.from_numpy(there)).numpy()
        return found

    return encode


def in_onnxruntime(weights: Mapping[str, np.ndarray]) -> Encoder:
    """The torch function exported to ONNX. Takes `pip install onnx onnxruntime`."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(_exported(weights), options, providers=["CPUExecutionProvider"])

    def encode(ids: np.ndarray, there: np.ndarray) -> np.ndarray:
        found: np.ndarray = session.run(None, {"ids": ids, "there": there})[0]
        return found

    return encode


def _exported(weights: Mapping[str, np.ndarray]) -> bytes:
    import torch

    function = torch_function(weights)

    class Module(torch.nn.Module):
        def forward(self, ids: Any, there: Any) -> Any:
            return function(ids, there)

    file = io.BytesIO()
    example = (torch.zeros((2, 8), dtype=torch.int32), torch.ones((2, 8), dtype=torch.bool))
    axes = {0: "sentences", 1: "tokens"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is the old one, which needs no further packages
        torch.onnx.export(
            Module(),
            example,
            file,
            dynamo=False,
            opset_version=17,
            input_names=["ids", "there"],
            output_names=["embeddings"],
            dynamic_axes={"ids": axes, "there": axes, "embeddings": {0: "sentences"}},
        )
    return file.getvalue()
