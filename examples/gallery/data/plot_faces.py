"""
What faces have in common
=========================

Six hundred drawn faces differ in many ways at once. Their principal components are the ways that matter most, and
eight of them redraw a face well. They are found by repeated multiplication with the covariance, which is never
written down.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def multiplied(faces: np.ndarray, components: np.ndarray) -> np.ndarray:
    """The covariance of the faces, times some directions."""
    centred = faces - faces.mean(axis=0)
    return centred.T @ (centred @ components) / len(faces)


# %%
# The faces: a head of some width, eyes that are open or not, a mouth that smiles or not, some hair.

SIDE, COUNT = 40, 600
random = np.random.default_rng(1)
y, x = np.mgrid[-1 : 1 : SIDE * 1j, -1 : 1 : SIDE * 1j]
wide, apart, opened, smile, hair, look = random.uniform(-1, 1, (6, COUNT, 1, 1))


def soft(inside: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-14 * inside)))


head = soft(1 - (x / (0.68 + 0.12 * wide)) ** 2 - (y / 0.9) ** 2)
faces = 0.12 + 0.68 * head - 0.5 * head * soft(-0.5 + 0.18 * hair - y)
for sign in (-1, 1):
    eye = np.hypot((x - sign * (0.3 + 0.06 * apart)) / 0.17, (y + 0.18) / (0.12 + 0.05 * opened))
    faces += 0.25 * soft(1 - eye)
    faces -= 0.7 * soft(1 - np.hypot(x - sign * (0.3 + 0.06 * apart) - 0.06 * look, y + 0.18) / 0.08)
faces -= 0.45 * soft(1 - np.abs(y - 0.45 + 0.5 * smile * (x**2 - 0.05)) / 0.06) * soft(1 - (x / 0.38) ** 2)
faces = faces.reshape(COUNT, -1).astype(np.float32)

components = random.standard_normal((SIDE * SIDE, 8)).astype(np.float32)
for _ in range(12):
    components = np.linalg.qr(multiplied(faces, components))[0]

mean = faces.mean(axis=0)
redrawn = mean + (faces - mean) @ components @ components.T
figure, panels = plt.subplots(3, 5, figsize=(5.4, 4.0))
for row, (name, images) in enumerate({"faces": faces, "components": components.T, "redrawn": redrawn}.items()):
    for column, panel in enumerate(panels[row]):
        panel.imshow(images[column].reshape(SIDE, SIDE), cmap="bone" if row != 1 else "RdBu")
        panel.axis("off")
    panels[row, 0].set_title(name)

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(multiplied, faces, components)

# sphinx_gallery_thumbnail_number = 1
