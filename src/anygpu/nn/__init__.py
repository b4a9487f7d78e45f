"""`anygpu.nn`: functions for neural networks, for NumPy's arrays and for anygpu's, on every engine.

Each is a plain function of arrays: it computes with NumPy when it gets NumPy's arrays, and is recorded when it gets
anygpu's, alone or inside `offload`. There are no layers with a state, no training and no random numbers.
"""

from anygpu.nn.activations import gelu, log_softmax, relu, silu, softmax
from anygpu.nn.attention import attention
from anygpu.nn.layers import embedding, linear, mean_pool
from anygpu.nn.norms import layer_norm, rms_norm
from anygpu.nn.quantisation import Quantised, dequantise, quantise, quantised_matmul
from anygpu.nn.similarity import cosine_similarity, pairwise_cosine_similarity, top_k

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
