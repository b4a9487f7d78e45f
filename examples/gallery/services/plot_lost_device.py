"""
A device is lost while it works
===============================

Drivers reset and processes die. Here a worker is killed while it computes; the task runs again in a new one, the
result is right, and the receipt says what happened and what it cost.
"""

import time
from contextlib import suppress

import matplotlib.pyplot as plt
import numpy as np
import psutil

import anygpu as ag
from examples.gallery.engines_chart import engines_chart


def smoothed(image: np.ndarray) -> np.ndarray:
    for _ in range(12):
        image = np.tanh(image @ image.T / np.float32(600)) + np.float32(0.1) * image
    return image


# %%
# ``opencl`` and ``webgpu`` have a process for each device. Killing it is a real loss.

engines = {device.engine for device in ag.devices()}
device = next(name for name in ("opencl", "webgpu", "numpy") if name in engines)
image = np.random.default_rng(0).standard_normal((600, 600), dtype=np.float32)
ag.run(smoothed, image, on=device)

futures = []
for number in range(9):
    future = ag.submit(smoothed, image, on=device)
    futures.append(future)
    if number == 4 and device != "numpy":
        while not future.running() and not future.done():
            time.sleep(0.0005)
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # some may have ended by themselves
                if any("anygpu" in word for word in child.cmdline()):
                    child.kill()
    future.result()

# %%
# The phases of all nine calls:

PHASES = {"queue": "#9ec9e6", "compile": "#D55E00", "run": "#0072B2"}
receipts = [future.receipt for future in futures if future.receipt is not None]
figure, panel = plt.subplots(figsize=(5.4, 3.6))
left = np.zeros(len(receipts))
for phase, colour in PHASES.items():
    seconds = np.array([getattr(receipt.phases, phase) for receipt in receipts])
    panel.barh(range(1, 10), seconds, left=left, color=colour, label=phase, height=0.7)
    left += seconds
for place, receipt in enumerate(receipts, 1):
    if receipt.failures:
        panel.text(
            left[place - 1], place - 0.75, f"{receipt.failures[0].error} ", ha="right", va="bottom", weight="bold"
        )
panel.set(xlabel="seconds", ylabel="call", ylim=(9.6, 0.4), yticks=range(1, 10))
panel.legend(loc="lower right")

# %%
# The receipt of the call that lost its device:

print(next((receipt for receipt in receipts if receipt.failures), receipts[-1]))
same = all(np.array_equal(future.result(), futures[0].result()) for future in futures)
print("all nine results are equal:", same)

# %%
# The same function on every engine:

figure = engines_chart(smoothed, image)

# sphinx_gallery_thumbnail_number = 1
