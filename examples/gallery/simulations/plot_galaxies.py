"""
Two galaxies meet
=================

Eight thousand stars circle around two heavy centres, which fly past each other. Every star feels both centres; the
tides pull out long arms, as Toomre and Toomre showed in 1972.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

DT = np.float32(0.02)


def pull(places: np.ndarray, centres: np.ndarray) -> np.ndarray:
    away = centres[None, :, :] - places[:, None, :]
    distance = np.sqrt((away * away).sum(axis=2, keepdims=True) + np.float32(0.02))
    return (away / distance**3).sum(axis=1)


@ag.offload
def two_steps(places: np.ndarray, speeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first two rows are the centres, which pull each other and all others."""
    for _ in range(2):
        speeds = speeds + DT * pull(places, places[:2])
        places = places + DT * speeds
    return places, speeds


# %%
# Each galaxy is a disc of stars that would circle for ever if it were alone.

random = np.random.default_rng(1)
centres = np.array([[-2.2, -1.1], [2.2, 1.1]], np.float32)
drift = np.array([[0.52, -0.05], [-0.52, 0.05]], np.float32)
places, speeds = [centres], [drift]
for centre, flight in zip(centres, drift, strict=True):
    radius = (0.35 + 1.25 * np.sqrt(random.random((4000, 1)))).astype(np.float32)
    angle = 2 * np.pi * random.random((4000, 1)).astype(np.float32)
    out = np.hstack([np.cos(angle), np.sin(angle)])
    places.append(centre + radius * out)
    speeds.append(flight + np.hstack([-out[:, 1:], out[:, :1]]) * radius / (radius**2 + 0.02) ** 0.75)
state = np.vstack(places), np.vstack(speeds)

figure, panels = plt.subplots(2, 2, figsize=(5.4, 4.6), facecolor="black")
done = 0
for panel, until in zip(panels.flat, (0, 130, 210, 330), strict=True):
    while done < until:
        state = two_steps(*state)
        done += 2
    stars = state[0][2:]
    panel.set_facecolor("black")
    panel.scatter(*stars[:4000].T, s=0.7, c="#8fd0ff", alpha=0.6, linewidths=0)
    panel.scatter(*stars[4000:].T, s=0.7, c="#ffc27a", alpha=0.6, linewidths=0)
    panel.set(xlim=(-4.4, 4.4), ylim=(-3.4, 3.4), xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    panel.set_title(f"time {until * float(DT):.1f}", color="white")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# The same call on every engine:

figure = engines_chart(two_steps, *state)

# sphinx_gallery_thumbnail_number = 1
