"""
Sentences with the same meaning
===============================

A sentence encoder, all-MiniLM-L6-v2, turns each sentence into a vector; sentences that mean the same point the same
way. The model is a plain function of arrays in ``examples/encoders``, and runs on every engine.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.encoders import minilm
from examples.gallery.engines_chart import engines_chart
from examples.sentences import host_weights

WEIGHTS = host_weights()


@ag.offload
def encoded(ids: np.ndarray, there: np.ndarray) -> np.ndarray:
    """The weights are no arguments: they are captured, and stay on the device between calls."""
    vectors: np.ndarray = minilm.encode(ids, there, WEIGHTS)
    return vectors


# %%
# The tokens of nine sentences go in, and nine vectors of length 1 come out. Their products are cosines.

sentences = [
    "The cat sleeps in the sun.",
    "A kitten is napping outside.",
    "My dog rests on the sofa.",
    "Shares fell after the news.",
    "The stock market lost value.",
    "Banks raised interest rates.",
    "Boil the pasta for ten minutes.",
    "Cook noodles until they are soft.",
    "The soup needs more salt.",
]
tokens = minilm.tokeniser().batch(sentences)
vectors = encoded(*tokens)
receipt = ag.last_receipt()
similarity = vectors @ vectors.T

figure, panel = plt.subplots(figsize=(5.4, 4.2))
picture = panel.imshow(similarity, cmap="YlGnBu", vmin=0, vmax=1)
panel.set_yticks(range(len(sentences)), sentences)
panel.set_xticks([])
panel.spines[:].set_visible(False)
for row, column in np.ndindex(similarity.shape):
    colour = "white" if similarity[row, column] > 0.5 else "#1f1f1f"
    panel.text(
        column,
        row,
        str(round(100 * float(similarity[row, column]))),
        ha="center",
        va="center",
        color=colour,
        fontsize=9,
    )
panel.set_xlabel("cosine of each pair, in percent")

# %%
# Where the call ran, and why:

print(receipt)

# %%
# The first two of the six layers on every engine; all six take three times as long, also to compile:

TWO_LAYERS = minilm.first_layers(WEIGHTS, 2)


def two_layers(ids: np.ndarray, there: np.ndarray) -> np.ndarray:
    vectors: np.ndarray = minilm.encode(ids, there, TWO_LAYERS)
    return vectors


figure = engines_chart(two_layers, *tokens)

# sphinx_gallery_thumbnail_number = 1
