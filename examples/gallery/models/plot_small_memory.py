"""
Training in half of the memory
==============================

A small vision transformer of PyTorch is trained with a batch that takes twice the memory there is. ``Step`` cuts the
batch, or computes some layers again, and the gradients are those of the whole batch.
"""

import copy

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import anygpu as ag
from anygpu.pytorch import Step
from examples.gallery.engines_chart import engines_chart
from examples.vision_transformer import VisionTransformer, stripes

torch.manual_seed(0)
images = torch.Generator().manual_seed(0)
model = VisionTransformer(classes=4, width=64, depth=2)

# %%
# What does the whole batch take? A copy of the model is asked, and thrown away.

batch = stripes(64, 4, images)
trial = copy.deepcopy(model)
whole = Step(trial, torch.optim.AdamW(trial.parameters()), nn.CrossEntropyLoss(), micro_batch=64, checkpoint=())
wanted = whole(batch).receipt.predicted_bytes
assert wanted is not None

# %%
# The training gets half of it. Each step has a receipt:

step = Step(model, torch.optim.AdamW(model.parameters(), lr=3e-3), nn.CrossEntropyLoss(), memory=wanted // 2)
results = [step(stripes(64, 4, images)) for _ in range(24)]
print(results[-1].receipt)

# %%
# How sure is it of images that it has not seen? This part is NumPy, and offloaded:


@ag.offload
def confusion(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each true class, how often each class was given."""
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely = likely / likely.sum(axis=1, keepdims=True)
    true = (labels[:, None] == np.arange(scores.shape[1])).astype(np.float32)
    return true.T @ likely / true.sum(axis=0)[:, None]


unseen, labels = stripes(400, 4, images)
with torch.no_grad():
    scores = model(unseen).numpy()
table = confusion(scores, labels.numpy())

figure, (left, right) = plt.subplots(1, 2, figsize=(5.4, 2.9), width_ratios=(3, 2))
left.plot([result.loss.item() for result in results])
left.set(xlabel="step", ylabel="loss", ylim=(0, None))
left.set_title(f"in {wanted / 2**21:.0f} of {wanted / 2**20:.0f} MiB")
right.imshow(table, cmap="YlGnBu", vmin=0, vmax=1)
for row, column in np.ndindex(table.shape):
    colour = "white" if table[row, column] > 0.5 else "#1f1f1f"
    right.text(column, row, f"{100 * table[row, column]:.0f}", ha="center", va="center", color=colour, fontsize=9)
right.set(xticks=[], yticks=[], xlabel="given", ylabel="true")
right.set_title("in percent")

# %%
# Where the last call of ``confusion`` ran, and why:

print(ag.last_receipt())

# %%
# The steps above are PyTorch's. The NumPy part runs on every engine:

figure = engines_chart(confusion, np.tile(scores, (250, 1)), np.tile(labels.numpy(), 250))

# sphinx_gallery_thumbnail_number = 1
