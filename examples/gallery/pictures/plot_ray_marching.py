"""
A picture from distances
========================

A scene is a function: how far is it from a point to the nearest surface? A ray may go that far and ask again, and
after forty steps it is there. Every pixel is a ray, and all of them march at once.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

BALLS = (
    (-1.3, 0.0, 0.3, 0.7),
    (0.0, 0.25, 0.6, 0.95),
    (1.35, -0.1, 0.2, 0.62),
    (0.45, -0.45, -0.8, 0.36),
    (-0.55, -0.5, -0.7, 0.28),
)


def distance(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """To balls that melt into each other and into the floor: a minimum without corners."""
    near = np.exp(-12 * (y + np.float32(0.75)))
    for at_x, at_y, at_z, radius in BALLS:
        near = near + np.exp(-12 * (np.sqrt((x - at_x) ** 2 + (y - at_y) ** 2 + (z - at_z) ** 2) - radius))
    return -np.log(np.maximum(near, np.float32(1e-37))) / 12


@ag.offload
def march(travelled: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Two steps along the rays (x, y, z), which begin at the camera."""
    for _ in range(2):
        here = travelled * x, np.float32(0.9) + travelled * y, travelled * z - 4
        travelled = np.minimum(travelled + np.float32(0.9) * distance(*here), 20)
    return travelled


# %%
# After the march, the slope of the distance says where a surface faces, and so how much light it gets.

across, up = np.meshgrid(np.linspace(-1.5, 1.5, 420), np.linspace(0.72, -1.08, 252))
length = np.sqrt(across**2 + up**2 + 4.4)
rays = [(part / length).astype(np.float32) for part in (across, up - 0.15, np.full_like(up, 2.1))]
travelled = np.full(across.shape, 1.0, np.float32)
for _ in range(20):
    travelled = march(travelled, *rays)


def shaded(travelled: np.ndarray) -> np.ndarray:
    x, y, z = travelled * rays[0], 0.9 + travelled * rays[1], travelled * rays[2] - 4
    step = 1e-2
    slope = np.stack(
        [
            distance(x + step, y, z) - distance(x - step, y, z),
            distance(x, y + step, z) - distance(x, y - step, z),
            distance(x, y, z + step) - distance(x, y, z - step),
        ]
    )
    slope /= np.linalg.norm(slope, axis=0) + 1e-9
    light = np.array([-0.55, 0.7, -0.45])[:, None, None]
    lit = np.clip((slope * light).sum(axis=0), 0, 1)
    shadow = np.ones_like(lit)
    for far in (0.15, 0.3, 0.5, 0.8, 1.2, 1.7):
        shadow = np.minimum(
            shadow, np.clip(3 * distance(x + far * light[0], y + far * light[1], z + far * light[2]) / far, 0, 1)
        )
    mirrored = np.clip((slope * (light - np.stack(rays)) / 1.7).sum(axis=0), 0, 1) ** 40
    warmth = np.clip((y + 0.75) / 1.6, 0, 1)[..., None]
    colour = (1 - warmth) * np.array([0.16, 0.35, 0.55]) + warmth * np.array([0.95, 0.55, 0.25])
    picture = colour * (0.25 + 0.85 * lit * shadow)[..., None] + (0.3 * mirrored * shadow)[..., None]
    fog = np.exp(-0.012 * travelled**2)[..., None]
    return np.clip(fog * picture + (1 - fog) * np.array([0.87, 0.92, 0.96]), 0, 1)


figure, panel = plt.subplots(figsize=(5.4, 3.35))
panel.imshow(shaded(travelled), interpolation="bilinear")
panel.axis("off")

# %%
# Where the last of the calls ran, and why:

print(ag.last_receipt())

# %%
# Two steps of 106,000 rays, on every engine:

figure = engines_chart(march, travelled, *rays)

# sphinx_gallery_thumbnail_number = 1
