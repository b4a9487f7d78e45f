"""One leapfrog step of bodies that attract each other."""

from __future__ import annotations

from typing import Any

import numpy as np


def acceleration(position: Any, mass: Any, softening: float = 0.05) -> Any:
    apart = position[None, :, :] - position[:, None, :]
    squared = (apart**2).sum(axis=-1) + softening**2
    return (apart * (mass[None, :] / squared**1.5)[:, :, None]).sum(axis=1)


def nbody_step(position: Any, velocity: Any, mass: Any, dt: float = 0.01) -> tuple[Any, Any, Any]:
    velocity = velocity + acceleration(position, mass) * (dt / 2)
    position = position + velocity * dt
    velocity = velocity + acceleration(position, mass) * (dt / 2)
    energy = 0.5 * np.sum(mass * np.einsum("ij,ij->i", velocity, velocity))
    return position, velocity, energy


def inputs(rng: np.random.Generator) -> list[Any]:
    count = 201
    return [rng.normal(size=(count, 3)), rng.normal(size=(count, 3)) * 0.1, rng.uniform(0.5, 2, count)]


if __name__ == "__main__":
    from examples.compare import compare

    compare(nbody_step, inputs(np.random.default_rng(0)))
