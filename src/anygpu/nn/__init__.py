"""`anygpu.nn`: functions for neural networks, for NumPy's arrays and for anygpu's, on every engine.

Each is a plain function of arrays: it computes with NumPy when it gets NumPy's arrays, and is recorded when it gets
anygpu's, alone or inside `offload`. There are no layers with a state, no training and no random numbers.
"""

from anygpu.nn.layers import (
    attention,
    cosine_similarity,
    embedding,
    gelu,
    layer_norm,
    linear,
    log_softmax,
    mean_pool,
    pairwise_cosine_similarity,
    relu,
    rms_norm,
    silu,
    softmax,
    top_k,
)
from anygpu.nn.quantisation import Quantised, dequantise, quantise, quantised_matmul

__all__ = [
    "Quantised",
    "attention",
    "cosine_similarity",
    "dequantise",
    "embedding",
    "gelu",
    "layer_norm",
    "linear",
    "log_softmax",
    "mean_pool",
    "pairwise_cosine_similarity",
    "quantise",
    "quantised_matmul",
    "relu",
    "rms_norm",
    "silu",
    "softmax",
    "top_k",
]
