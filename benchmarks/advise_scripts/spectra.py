"""Power spectra of windows of a signal, from two functions of which one calls the other."""

import numpy as np


def windowed(frames):
    n = frames.shape[1]
    return frames * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n, dtype=np.float32) / n))


def power(frames):
    spectrum = np.fft.rfft(windowed(frames), axis=1)
    return np.log10(np.abs(spectrum) ** 2 + 1e-9)


signal = np.random.default_rng(9).standard_normal(1_024_000).astype(np.float32)
frames = signal.reshape(-1, 1024)
for _ in range(5):
    p = power(frames)
print(f"{p.mean():.4f}")
