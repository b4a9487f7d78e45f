"""What torch's settings cost and give, as torch's own documentation has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: By name and value; `...` stands for any value. From torch's notes "CUDA semantics" and "Reproducibility", and from
#: the documentation of the functions themselves. TF32 on an A100 is in the first, under "TensorFloat-32 (TF32)":
#: two matrices of 10240 × 10240 take 0.016 s instead of 0.11 s, with a relative error of 0.0022 instead of 0.000039.
_SENTENCES: dict[tuple[str, Any], str] = {
    ("tf32", True): (
        "float32 products and convolutions on NVIDIA cards since Ampere use TF32, which keeps 10 bits of the mantissa "
        "instead of 23. Torch's documentation has a product on an A100 that is 7 times as fast, with errors 56 times "
        "as large; other cards gain less or more, and none was measured here. No effect elsewhere"
    ),
    ("tf32", False): (
        "float32 products and convolutions on NVIDIA cards keep all 23 bits of the mantissa. Torch's documentation has "
        "a product on an A100 that takes 7 times as long as with TF32; none was measured here. No effect elsewhere"
    ),
    ("cudnn_benchmark", True): (
        "cuDNN tries its convolution algorithms at each new shape and keeps the fastest. Pays where shapes stay the "
        "same; each new shape costs a trial, and the choice may differ between runs, and with it the last bits"
    ),
    ("cudnn_benchmark", False): (
        "cuDNN chooses convolution algorithms by rule: no trials at new shapes, but not always the fastest one"
    ),
    ("deterministic", True): (
        "the same inputs give the same bits on the same machine. Some operations become slower, new memory is filled "
        "first, and operations without a deterministic version raise RuntimeError; on CUDA, matrix products do so "
        "unless CUBLAS_WORKSPACE_CONFIG=:4096:8 is set before the start"
    ),
    ("deterministic", "warn"): (
        "the same inputs give the same bits on the same machine, except for operations without a deterministic "
        "version, which warn. Some operations become slower, and new memory is filled first"
    ),
    ("deterministic", False): "the fastest version of each operation, whose last bits may differ from run to run",
    ("threads", ...): (
        "operations on the CPU use this many threads, in this thread and in those started in the block. More than the "
        "number of cores makes them wait for each other; fewer leaves cores to others. Sums may differ in the last bits"
    ),
    ("matmul_precision", "highest"): "float32 products use all 23 bits of the mantissa",
    ("matmul_precision", "high"): (
        "float32 products may use TF32 or three bfloat16 parts: 10 to 16 bits of the mantissa. Faster where the card "
        "or the processor has units for that, no effect elsewhere"
    ),
    ("matmul_precision", "medium"): (
        "float32 products may be computed in bfloat16, which keeps 7 bits of the mantissa. Faster where the card or "
        "the processor has units for that (on the CPU: amx_bf16 or avx512_bf16), no effect elsewhere"
    ),
}


def costs_of(given: Mapping[str, Any]) -> dict[str, str]:
    """A sentence for each setting that is given."""
    return {name: _SENTENCES.get((name, value)) or _SENTENCES[name, ...] for name, value in given.items()}
