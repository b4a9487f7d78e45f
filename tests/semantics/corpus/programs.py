"""Whole programs, small: images, sound, statistics, physics, finance and learning."""

from dataclasses import dataclass

import numpy as np

from tests.semantics.cases import World, case, case_of_state, given, matrix, positive, turn, vector


def image(n, height=6, width=8):
    return (np.random.default_rng(n).random((height, width)) * 255).astype(np.uint8)


@case(lambda n: (image(n),))
def equalise(img):
    histogram = np.bincount(img.ravel(), minlength=256)
    cdf = histogram.cumsum()
    table = np.round((cdf - cdf.min()) / (cdf.max() - cdf.min()) * 255).astype(np.uint8)
    return table[img]


@case(lambda n: (image(n), turn(n, 1, 2)), either=True)
def box_blur(img, radius):
    padded = np.pad(img.astype(np.float32), radius, mode="edge")
    size = 2 * radius + 1
    total = np.zeros(img.shape, np.float32)
    for dy in range(size):
        for dx in range(size):
            total += padded[dy : dy + img.shape[0], dx : dx + img.shape[1]]
    return np.clip(total / size**2, 0, 255).astype(np.uint8)


@case(lambda n: (image(n).astype(np.float32),))
def edges(img):
    gx = img[1:-1, 2:] - img[1:-1, :-2]
    gy = img[2:, 1:-1] - img[:-2, 1:-1]
    return np.hypot(gx, gy), np.arctan2(gy, gx)


@case(lambda n: (np.stack([image(n), image(n + 1), image(n + 2)], axis=-1),))
def grey(img):
    return (img @ np.array([77, 150, 29]) >> 8).astype(np.uint8), img[..., ::-1] + np.uint8(1)


@case(lambda n: (image(n), turn(n, 0.5, 2.2)))
def gamma(img, value):
    table = ((np.arange(256) / 255) ** value * 255).astype(np.uint8)
    return table[img]


@case(lambda n: (image(n),), either=True)
def threshold_by_otsu(img):
    best, chosen = -1.0, 0
    for level in range(0, 256, 51):
        low, high = img[img < level], img[img >= level]
        if len(low) and len(high):
            score = len(low) * len(high) * (low.mean() - high.mean()) ** 2
            if score > best:
                best, chosen = score, level
    return img > chosen, chosen


@case(lambda n: (image(n),))
def mirror_and_crop(img):
    h, w = img.shape
    return np.fliplr(img)[1 : h - 1, 1 : w - 1].copy(), np.rot90(img, 2) + np.uint8(0)


@case(lambda n: (vector(n, 32),), within=16)
def spectrogram(signal):
    frames = np.lib.stride_tricks.sliding_window_view(signal, 8)[::4]
    window = np.hanning(8).astype(np.float32)
    power = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2
    return 10 * np.log10(power + 1e-3)


@case(lambda n: (vector(n, 24), turn(n, 0.1, 0.5)))
def low_pass(signal, alpha):
    out = np.zeros_like(signal)
    level = 0.0
    for number in range(6):
        level = level + alpha * (signal[number] - level)
        out[number] = level
    return out


@case(lambda n: (vector(n, 24),))
def envelope(signal):
    frames = signal.reshape(-1, 4)
    return np.sqrt((frames**2).mean(axis=1)), np.abs(frames).max(axis=1)


@case(lambda n: (vector(n, 16), np.array([0.25, 0.5, 0.25], np.float32)))
def filtered(signal, kernel):
    smooth = np.convolve(signal, kernel, mode="same")
    return smooth, signal - smooth, (np.diff(np.sign(smooth)) != 0).sum()


@case(lambda n: (matrix(n, 8, 3),))
def normalise(x):
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-3)


@case(lambda n: given({"x": matrix(n, 8, 3), "options": {"mode": turn(n, "std", "ptp"), "axis": 0}}))
def normalise_with_options(batch):
    x, options = batch["x"], batch["options"]
    scale = x.std(axis=options["axis"]) if options["mode"] == "std" else np.ptp(x, axis=options["axis"])
    return {"z": (x - x.mean(axis=0)) / (scale + 1), "mode": options["mode"], "n": len(x)}


@case(lambda n: (matrix(n, 8, 2), vector(n, 8)), within=64)
def least_squares(x, y):
    design = np.column_stack([x, np.ones(len(x), x.dtype)])
    return np.linalg.solve(design.T @ design + np.eye(3, dtype=np.float32), design.T @ y)


@case(lambda n: (matrix(n, 12, 2),))
def distances(points):
    d = points[:, None, :] - points[None, :, :]
    squared = (d * d).sum(axis=-1)
    return np.sqrt(squared), (squared < 4).sum(axis=1)


@case(lambda n: (matrix(n, 12, 2), 2))
def k_means(points, k):
    centres = points[:k].copy()
    for _ in range(1):
        label = ((points[:, None] - centres) ** 2).sum(-1).argmin(axis=1)
        for j in range(k):
            chosen = (label == j)[:, None]
            centres[j] = (points * chosen).sum(axis=0) / np.maximum(chosen.sum(), 1)
    return centres, label


@case(lambda n: (vector(n, 30), 200 + n % 3), either=True)
def bootstrap(x, seed):
    rng = np.random.default_rng(seed)
    means = [x[rng.integers(0, len(x), len(x))].mean() for _ in range(4)]
    return np.mean(means), np.std(means)


@case(lambda n: (vector(n, 20),))
def moving_average(x):
    c = np.cumsum(np.insert(x, 0, 0))
    return (c[5:] - c[:-5]) / 5


@case(lambda n: (matrix(n, 8, 8), turn(n, 1, 2)))
def heat(u0, steps):
    u = u0.copy()
    for _ in range(steps):
        u[1:-1, 1:-1] += 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return u


@case(lambda n: (matrix(n, 8, 8),), either=True)
def heat_in_place(u):
    u[1:-1, 1:-1] += 0.2 * (u[2:, 1:-1] + u[:-2, 1:-1] - 2 * u[1:-1, 1:-1])


@case(lambda n: (matrix(n, 5, 2), matrix(n + 1, 5, 2), 0.1))
def n_bodies(position, velocity, dt):
    d = position[None] - position[:, None]
    r = np.sqrt((d**2).sum(-1) + 0.5)
    velocity = velocity + dt * (d / r[..., None] ** 3).sum(axis=1)
    return position + dt * velocity, velocity


@case(lambda n: (vector(n, 4), 0.05), within=4)
def runge_kutta(y, h):
    def f(v):
        return np.array([v[1], -v[0], v[3], -v[2]]) if False else np.roll(v, -1) - 0.1 * v

    k1 = f(y)
    k2 = f(y + h / 2 * k1)
    k3 = f(y + h / 2 * k2)
    k4 = f(y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@case(lambda n: (vector(n, 36).reshape(6, 6) > 0,), either=True)
def game_of_life(board):
    b = board.astype(np.int32)
    around = sum(np.roll(np.roll(b, dy, 0), dx, 1) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx)
    return (around == 3) | (board & (around == 2))


@case(lambda n: (8, 6, 2, turn(n, 0.0, 0.5)), either=True)
def ray_march(w, h, steps, angle):
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    d = np.stack([(x - w / 2) / h, (y - h / 2) / h, np.ones_like(x)], -1)
    d /= np.linalg.norm(d, axis=-1, keepdims=True)
    o = np.array([np.sin(angle), 0, -3], np.float32)
    t = np.zeros((h, w), np.float32)
    for _ in range(steps):
        p = o + d * t[..., None]
        t = t + (np.linalg.norm(p, axis=-1) - 1)
    return t


@case(lambda n: (positive(n, 40).reshape(20, 2), 3, 6))
def backtest(prices, fast, slow):
    c = np.cumsum(np.vstack([np.zeros((1, prices.shape[1]), prices.dtype), prices]), axis=0)
    short = ((c[fast:] - c[:-fast]) / fast)[slow - fast :]
    long = (c[slow:] - c[:-slow]) / slow
    signal = np.where(short > long, 1.0, -1.0).astype(prices.dtype)
    returns = prices[slow:] / prices[slow - 1 : -1] - 1
    pnl = signal[:-1] * returns
    return {"mean": pnl.mean(axis=0), "total": np.prod(1 + pnl, axis=0), "worst": pnl.min()}


@case(lambda n: (positive(n), 3.0, 0.02, 0.2, 1.0 + n % 3), within=2.0**29)  # a part of it is float32
def black_scholes(spot, strike, rate, vol, years):
    root = vol * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + vol**2 / 2) * years) / root
    cdf = lambda v: 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)))  # noqa: E731
    return spot * cdf(d1) - strike * np.exp(-rate * years) * cdf(d1 - root)


@case(lambda n: (positive(n, 12),))
def drawdown(prices):
    peak = np.maximum.accumulate(prices)
    return ((prices - peak) / peak).min(), np.diff(np.log(prices)).std()


@case(lambda n: (100.0, 0.02, 0.2, n % 3), either=True)
def monte_carlo(spot, rate, vol, seed):
    np.random.seed(seed)
    z = np.random.standard_normal(16)
    end = spot * np.exp(rate - vol**2 / 2 + vol * z)
    return float(np.maximum(end - spot, 0).mean()), end.std()


@case(lambda n: (matrix(n, 4, 3),))
def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@case(lambda n: (matrix(n, 8, 3), vector(n, 8) > 0, 0.1, 2), within=4)
def logistic_regression(x, y, rate, steps):
    w, b = np.zeros(x.shape[1], np.float32), 0.0
    for _ in range(steps):
        p = 1 / (1 + np.exp(-(x @ w + b)))
        g = p - y
        w = w - rate * (x.T @ g) / len(y)
        b = b - rate * g.mean()
    return w, b


@dataclass
class Cell:
    w: object
    u: object
    b: object


@case(lambda n: (Cell(matrix(n, 3, 8), matrix(n + 1, 2, 8), vector(n, 8)), vector(n, 12).reshape(2, 2, 3)), within=4)
def lstm(cell, sequence):
    h = np.zeros((sequence.shape[1], 2), np.float32)
    c = np.zeros_like(h)
    sig = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    for x in sequence:
        z = x @ cell.w + h @ cell.u + cell.b
        i, f, g, o = np.split(z, 4, axis=1)
        c = sig(f) * c + sig(i) * np.tanh(g)
        h = sig(o) * np.tanh(c)
    return h, c


@case(lambda n: (matrix(n, 4, 3), matrix(n + 1, 4, 3), matrix(n + 2, 4, 3)), within=4)
def attention(q, k, v):
    scores = q @ k.T / np.sqrt(q.shape[-1])
    scores = np.where(np.tril(np.ones_like(scores)) > 0, scores, -1e9)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


@case(lambda n: (matrix(n, 6, 4),))
def layer_norm(x):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-3) * np.arange(1, 5, dtype=np.float32) + 0.5


@case(lambda n: (np.abs(matrix(n, 4, 6)).astype(np.float32),))
def tf_idf(counts):
    tf = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    idf = np.log((1 + counts.shape[0]) / (1 + (counts > 0).sum(axis=0))) + 1
    m = tf * idf.astype(np.float32)
    m /= np.maximum(np.linalg.norm(m, axis=1, keepdims=True), 1e-6)
    similar = m @ m.T
    np.fill_diagonal(similar, -1)
    return similar.max(axis=1)


@case(lambda n: (np.random.default_rng(n).integers(0, 10, (9, 9)),))
def sudoku(grid):
    one = grid[..., None] == np.arange(1, 10)
    row, column = one.any(axis=1, keepdims=True), one.any(axis=0, keepdims=True)
    return ~(row | column) & (grid == 0)[..., None]


@case(lambda n: (matrix(n, 5, 2) * 10,))
def haversine(places):
    lat, lon = np.radians(places).T
    a = (
        np.sin((lat[:, None] - lat) / 2) ** 2
        + np.cos(lat[:, None]) * np.cos(lat) * np.sin((lon[:, None] - lon) / 2) ** 2
    )
    return 6371.0 * 2 * np.arcsin(np.sqrt(np.clip(a, 0, 1)))


@case(lambda n: (vector(n, 25).reshape(5, 5) > 0,), either=True)
def components(mask):
    label = np.where(mask, np.arange(1, mask.size + 1).reshape(mask.shape), 0)
    while True:
        p = np.pad(label, 1)
        new = np.max([p[1:-1, 1:-1], p[:-2, 1:-1], p[2:, 1:-1], p[1:-1, :-2], p[1:-1, 2:]], axis=0)
        new = np.where(mask, new, 0)
        if not np.any(new != label):
            return len(np.unique(new)) - 1, new
        label = new


@case(lambda n: (positive(n, 8),), either=True)
def mandelbrot(x):
    c = (x[:, None] / 4 - 1) + 1j * (x / 4 - 0.5)
    z = np.zeros_like(c)
    count = np.zeros(c.shape, np.int32)
    for _ in range(4):
        z = z * z + c
        inside = np.abs(z) <= 2
        count += inside
        z = np.where(inside, z, 0)
    return count


@case_of_state(either=True)
def an_optimiser():
    class Adam:
        def __init__(self):
            self.m, self.v, self.t = np.zeros(6, np.float32), np.zeros(6, np.float32), 0

        def step(self, w, g):
            self.t += 1
            self.m = 0.9 * self.m + 0.1 * g
            self.v = 0.99 * self.v + 0.01 * g * g
            return w - 0.1 * self.m / (np.sqrt(self.v) + 1e-3)

    adam = Adam()
    return World(adam.step, lambda n: (vector(n), vector(n + 1)), seen=lambda: (adam.m, adam.v, adam.t))


@case_of_state()
def a_network_with_weights_that_are_trained():
    class Network:
        def __init__(self):
            self.layers = [(matrix(1, 4, 5), vector(1, 5)), (matrix(2, 5, 2), vector(2, 2))]

        def __call__(self, x):
            for w, b in self.layers:
                x = np.tanh(x @ w + b)
            return x

    network = Network()

    def change(n):
        for w, b in network.layers:
            w -= 0.125
            b += 0.25
        if n % 7 == 0:
            network.layers = [(matrix(n, 4, 5), vector(n, 5)), (matrix(n + 1, 5, 2), vector(n, 2))]

    return World(network, lambda n: (matrix(n, 3, 4),), change)


@case_of_state()
def a_lookup_table():
    table = np.linspace(0, 1, 256, dtype=np.float32) ** 2

    def function(img):
        return table[img]

    return World(function, lambda n: (image(n),), lambda n: table.__setitem__(n, 5))


@case_of_state()
def a_pipeline_of_functions():
    steps = [np.abs, np.sqrt, lambda v: v * 2]

    def function(x):
        for step in steps:
            x = step(x)
        return x

    def change(n):
        if n % 5 == 4:
            steps.reverse()

    return World(function, lambda n: (positive(n),), change)
