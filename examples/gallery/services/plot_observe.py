"""
What a process does all day
===========================

An observed process counts every call: by function and device, with the quantiles of their times and the phases of
each. It costs about a microsecond for a call.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


@ag.offload
def level(signal: np.ndarray) -> np.ndarray:
    return np.sqrt((signal * signal).mean(axis=-1))


@ag.offload
def similar(vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return unit @ unit.T


@ag.offload
def spectrum(signal: np.ndarray) -> np.ndarray:
    return np.abs(np.fft.rfft(signal, axis=-1))


# %%
# Some traffic, of sizes that vary:

ag.observe.start()
random = np.random.default_rng(0)
for _ in range(250):
    count = int(2 ** random.uniform(3, 9))
    signals = random.standard_normal((count, 256), dtype=np.float32)
    level(signals)
    spectrum(signals)
    similar(signals)
statistics = ag.statistics()
ag.observe.stop()
print(statistics)

# %%
# The same figures as a picture: half, nine tenths and 99 of 100 calls took at most so long.

figure, panel = plt.subplots(figsize=(5.4, 3.0))
rows = sorted(statistics.calls, key=lambda each: each.seconds.p50 or 0)
for place, each in enumerate(rows):
    found = [1e3 * (value or 0) for value in (each.seconds.p50, each.seconds.p90, each.seconds.p99)]
    panel.plot(found, [place] * 3, color="#868686", zorder=1)
    for value, marker, colour in zip(found, "osD", ("#0072B2", "#D55E00", "#2A2A2A"), strict=True):
        panel.scatter(value, place, marker=marker, color=colour, s=52, zorder=2)
for marker, colour, name in zip("osD", ("#0072B2", "#D55E00", "#2A2A2A"), ("p50", "p90", "p99"), strict=True):
    panel.scatter([], [], marker=marker, color=colour, s=52, label=name)
panel.set_yticks(range(len(rows)), [f"{each.function}\n{each.calls} on {each.device}" for each in rows])
panel.set(xscale="log", xlabel="milliseconds", ylim=(-0.6, len(rows) - 0.2))
panel.legend(loc="upper left", ncols=3)

# %%
# The receipt of the last call has the same about that one:

print(ag.last_receipt())

# %%
# One of the functions on every engine:

figure = engines_chart(similar, random.standard_normal((1000, 256), dtype=np.float32))

# sphinx_gallery_thumbnail_number = 1
