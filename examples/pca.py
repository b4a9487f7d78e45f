"""Principal components: centre the data, decompose it, project it on the first axes."""

from __future__ import annotations

from typing import Any

import numpy as np


def pca(data: Any, components: int = 3) -> tuple[Any, Any]:
    centred = data - data.mean(axis=0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    # The sign of an axis is arbitrary: let its largest entry be positive.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    axes = axes * np.sign(largest)
    explained = singular**2 / (data.shape[0] - 1)
    return centred @ axes[:components].T, explained[:components]


def inputs(rng: np.random.Generator) -> list[Any]:
    return [rng.normal(size=(501, 3)) @ rng.normal(size=(3, 11)) + 0.1 * rng.normal(size=(501, 11))]


if __name__ == "__main__":
    from examples.compare import compare

    compare(pca, inputs(np.random.default_rng(0)))
