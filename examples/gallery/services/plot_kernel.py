"""
A kernel of your own
====================

Conway's life with 32 cells in each number: a program over bits, which NumPy can only express by unpacking them. The
kernel is WGSL, with a NumPy function beside it that says what it should compute. anygpu compares the two, and uses
the NumPy function where no device understands WGSL.
"""

import matplotlib.pyplot as plt
import numpy as np

import anygpu as ag
from examples.gallery.engines_chart import engines_chart

SOURCE = """
@group(0) @binding(0) var<storage, read> cells: array<u32>;
@group(0) @binding(1) var<storage, read_write> next: array<u32>;

const ROWS = 192u;
const WORDS = 9u;

fn cell(row: u32, column: u32) -> u32 {
    let r = (row + ROWS) % ROWS;
    let c = (column + WORDS * 32u) % (WORDS * 32u);
    return (cells[r * WORDS + c / 32u] >> (c % 32u)) & 1u;
}

@compute @workgroup_size(64)
fn life(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= ROWS * WORDS) { return; }
    let row = id.x / WORDS + ROWS;
    var word = 0u;
    for (var bit = 0u; bit < 32u; bit++) {
        let column = (id.x % WORDS) * 32u + bit + WORDS * 32u;
        var around = cell(row - 1u, column - 1u) + cell(row - 1u, column) + cell(row - 1u, column + 1u);
        around += cell(row, column - 1u) + cell(row, column + 1u);
        around += cell(row + 1u, column - 1u) + cell(row + 1u, column) + cell(row + 1u, column + 1u);
        let alive = around == 3u || (around == 2u && cell(row, column) == 1u);
        word |= select(0u, 1u, alive) << bit;
    }
    next[id.x] = word;
}
"""
BITS = np.arange(32, dtype=np.uint32)


def reference(cells: np.ndarray) -> np.ndarray:
    board = ((cells[:, :, None] >> BITS) & np.uint32(1)).reshape(192, 288)
    rows = np.roll(board, 1, 0) + board + np.roll(board, -1, 0)
    around = np.roll(rows, 1, 1) + rows + np.roll(rows, -1, 1) - board
    alive = (around == 3) | ((around == 2) & (board == 1))
    return (alive.astype(np.uint32).reshape(192, 9, 32) << BITS).sum(axis=2, dtype=np.uint32)


life = ag.Kernel(SOURCE, reference=reference)
print(life)

# %%
# A kernel is an ordinary function, also inside of offloaded ones.


@ag.offload
def two_generations(cells: np.ndarray) -> np.ndarray:
    later: np.ndarray = life(life(cells))
    return later


cells = np.random.default_rng(7).integers(0, 2**32, (192, 9), dtype=np.uint32)
warmth = np.zeros((192, 288))
for _ in range(90):
    cells = two_generations(cells)
    board = ((cells[:, :, None] >> BITS) & 1).reshape(192, 288)
    warmth = np.maximum(0.94 * warmth, board)

figure, panel = plt.subplots(figsize=(5.4, 3.7))
panel.imshow(warmth, cmap="inferno", interpolation="nearest")
panel.axis("off")

# %%
# Where the last of these calls ran, and why:

print(ag.last_receipt())

# %%
# ``webgpu`` runs the kernel, and the others the NumPy function:

figure = engines_chart(two_generations, cells)

# sphinx_gallery_thumbnail_number = 1
