"""A low-pass filter: to frequencies, a smooth cut, and back."""

from __future__ import annotations

from typing import Any

import numpy as np


def low_pass(signal: Any, rate: float = 1000.0, cutoff: float = 60.0) -> tuple[Any, Any]:
    spectrum = np.fft.rfft(signal)
    frequency = np.fft.rfftfreq(signal.shape[-1], 1 / rate)
    gain = 1 / np.sqrt(1 + (frequency / cutoff) ** 8)
    smooth = np.fft.irfft(spectrum * gain, n=signal.shape[-1])
    power = np.mean(np.abs(spectrum) ** 2, axis=0)
    return smooth, power


def inputs(rng: np.random.Generator) -> list[Any]:
    time = np.arange(3001) / 1000.0
    return [np.sin(2 * np.pi * 20 * time) + 0.5 * rng.normal(size=(9, time.size))]


if __name__ == "__main__":
    from examples.compare import compare

    compare(low_pass, inputs(np.random.default_rng(0)))
