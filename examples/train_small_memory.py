"""Fine-tunes a small vision transformer in half of the memory that it wants: `python -m examples.train_small_memory`.

The transformer first learns to tell four directions of stripes apart, in small batches; that stands in for weights that
somebody has trained. Then it is fine-tuned to tell eight apart, with a batch that does not fit into the budget.
`anygpu.pytorch.Step` cuts the batch, or computes some layers again in the backward pass, and the gradients are those of
the whole batch.
"""

from __future__ import annotations

import argparse
import copy
import os

import torch
from torch import nn
from torch.nn import functional

from anygpu.base.units import readable_bytes
from anygpu.pytorch import Step
from examples.vision_transformer import VisionTransformer, stripes

CLASSES = 8


def pretrained(width: int, depth: int, steps: int, generator: torch.Generator) -> VisionTransformer:
    """A transformer that tells four directions apart. Torch alone, in batches that fit anywhere."""
    model = VisionTransformer(4, width, depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        images, labels = stripes(32, 4, generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def wanted_bytes(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """What one step with the whole batch takes, by a copy of the model that is thrown away."""
    trial = copy.deepcopy(model)
    step = Step(trial, torch.optim.AdamW(trial.parameters()), nn.CrossEntropyLoss(), precision="float32",
                micro_batch=len(batch[1]), checkpoint=())  # fmt: skip
    receipt = step(batch).receipt
    found: int | None = receipt.peak_bytes or receipt.predicted_bytes
    assert found is not None, "it was either measured or predicted"
    return found


def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pretraining", type=int, default=20, help="steps")
    parser.add_argument("--cache", help="a folder for what is kept of steps, instead of the usual one")
    options = parser.parse_args()
    if options.cache:
        os.environ["ANYGPU_CACHE_DIR"] = options.cache

    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = pretrained(options.width, options.depth, options.pretraining, generator)
    model.head = nn.Linear(options.width, CLASSES)
    parameters = sum(each.numel() for each in model.parameters())
    print(f"A transformer of {parameters / 1e6:.1f} million parameters, fine-tuned in batches of {options.batch}.")

    wanted = wanted_bytes(model, stripes(options.batch, CLASSES, generator))
    budget = wanted // 2
    print(f"The whole batch takes {readable_bytes(wanted)}. The budget is {readable_bytes(budget)}.")

    unseen = stripes(256, CLASSES, generator)
    print(f"Right before: {accuracy(model, *unseen):.0%} of images it has not seen.")
    step = Step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), nn.CrossEntropyLoss(), memory=budget)
    peaks: list[int] = []
    for number in range(1, options.steps + 1):
        result = step(stripes(options.batch, CLASSES, generator))
        receipt = result.receipt
        if receipt.peak_bytes is not None and number > 1:  # the first step also loads libraries
            peaks.append(receipt.peak_bytes)
        if number == 1:
            assert step.plan is not None, "it has run"
            print(f"The plan: {step.plan.reason}")
        if number in (1, options.steps):
            print(f"Step {number}: {receipt}")
        if number % 5 == 1 or number == options.steps:
            print(f"step {number:3d}: loss {result.loss.item():.3f}")
    print(f"Right after: {accuracy(model, *unseen):.0%}.")
    if peaks:
        print(f"Highest peak: {readable_bytes(max(peaks))} of {readable_bytes(budget)} (resident).")


if __name__ == "__main__":
    main()
