"""A Kalman filter that follows a moving point through noisy positions."""

from __future__ import annotations

from typing import Any

import numpy as np


def kalman(measurements: Any, dt: float = 0.1) -> tuple[Any, Any]:
    move = np.array([[1, 0, dt, 0], [0, 1, 0, dt], [0, 0, 1, 0], [0, 0, 0, 1]])
    see = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0]])
    drift, noise = 0.01 * np.eye(4), 0.5 * np.eye(2)
    state, covariance = np.concatenate([measurements[0], np.zeros(2)]), np.eye(4)
    track = []
    for measured in measurements[1:]:
        state = move @ state
        covariance = move @ covariance @ move.T + drift
        gain = np.linalg.solve(see @ covariance @ see.T + noise, see @ covariance).T
        state = state + gain @ (measured - see @ state)
        covariance = (np.eye(4) - gain @ see) @ covariance
        track.append(state)
    return np.stack(track), covariance


def inputs(rng: np.random.Generator) -> list[Any]:
    time = np.arange(31) * 0.1
    path = np.stack([3 * time, np.sin(time)], axis=1)
    return [path + 0.3 * rng.normal(size=path.shape)]


if __name__ == "__main__":
    from examples.compare import compare

    compare(kalman, inputs(np.random.default_rng(0)))
