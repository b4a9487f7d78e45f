"""Three models on one device, one copy of what they share.

A text encoder and an image encoder meet in a joint space, where a kernel of our own compares them; a search and a
finder of duplicates use the same text encoder. With a store its weights are on the device once; without one, each model
has its own. What the models give each other stays on the device: `python -m examples.multimodal` prints the receipts,
and both sizes.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import anygpu as ag
from anygpu import nn
from examples.encoders import minilm, vision
from examples.encoders.minilm import Weights
from examples.sentences import QUESTIONS, SENTENCES, host_weights, one_device_of_each_engine, stored_weights

#: Of the space in which texts and images are compared.
JOINT_WIDTH = 128
#: Everybody who uses the text encoder.
USERS = ("joint", "search", "duplicates")
#: Two sentences that are more alike than this say the same.
ALIKE = 0.7

CAPTIONS = ("a red square", "the sea at night", "stripes of yellow and black", "grey noise")
REPEATED = (*SENTENCES[:6], "A cat is asleep on the window sill.", "Every dog has to be walked daily.")

COSINE = """
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> similarity: array<f32>;

override width: u32 = 128;

// One invocation compares one row of a with one row of b.
@compute @workgroup_size(64)
fn cosine(@builtin(global_invocation_id) id: vec3<u32>) {
    let columns = arrayLength(&b) / width;
    if (id.x >= arrayLength(&similarity)) {
        return;
    }
    let row = id.x / columns * width;
    let column = id.x % columns * width;
    var together = 0.0;
    var a_square = 0.0;
    var b_square = 0.0;
    for (var k = 0u; k < width; k++) {
        let x = a[row + k];
        let y = b[column + k];
        together += x * y;
        a_square += x * x;
        b_square += y * y;
    }
    similarity[id.x] = together / sqrt(a_square * b_square);
}
"""


def cosine_reference(a: Any, b: Any) -> Any:
    """The cosine between each row of a and each row of b."""
    lengths = np.sqrt(np.sum(a * a, axis=1)[:, None] * np.sum(b * b, axis=1)[None, :])
    return a @ b.T / lengths


@cache
def cosine_kernel(width: int) -> ag.Kernel:
    return ag.Kernel(COSINE, cosine_reference, constants={"width": width}, tolerance=(1e-4, 1e-5))


# -- the models: plain functions of arrays


def in_joint_space(hidden: Any, there: Any, images: Any, projection: Weights) -> tuple[Any, Any]:
    """The hidden states of texts, and the vectors of images, as vectors that can be compared."""
    texts = nn.linear(nn.mean_pool(hidden, there), projection["text"])
    return texts, nn.linear(images, projection["image"])


def best(questions: Any, documents: Any) -> Any:
    """For each question the three documents that are nearest to it."""
    return nn.top_k(nn.pairwise_cosine_similarity(questions, documents), 3)[1]


def alike(similarity: Any) -> Any:
    """Pairs that say the same, each once: a table of truth values."""
    return np.triu(similarity > ALIKE, 1)


def random_projection(seed: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(scale=1 / math.sqrt(width), size=(JOINT_WIDTH, width)).astype(np.float32)
        for name, width in (("text", minilm.WIDTH), ("image", vision.WIDTH))
    }


# -- what they are given


@dataclass(frozen=True)
class Inputs:
    captions: tuple[np.ndarray, np.ndarray]
    images: np.ndarray
    questions: tuple[np.ndarray, np.ndarray]
    documents: tuple[np.ndarray, np.ndarray]
    repeated: tuple[np.ndarray, np.ndarray]


def inputs() -> Inputs:
    """All texts have one shape, so that the encoder is compiled once."""
    tokeniser = minilm.tokeniser()
    batches = [
        tokeniser.batch(texts[:8], multiple=16)
        for texts in (CAPTIONS * 2, (*QUESTIONS, *QUESTIONS), SENTENCES, REPEATED)
    ]
    captions, questions, documents, repeated = batches
    return Inputs(captions, images(len(captions[0])), questions, documents, repeated)


def images(count: int, seed: int = 9) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.random((count, vision.SIDE, vision.SIDE, 3), np.float32)


# -- an application that has them all


@dataclass(frozen=True)
class Models:
    """The weights of every model, on one device."""

    device: str
    #: By the model that uses it.
    text: Mapping[str, Weights]
    image: Weights
    projection: Weights

    @property
    def buffers(self) -> int:
        """Bytes of all weights, as the models see them."""
        every = [*self.text.values(), self.image, self.projection]
        return sum(each.nbytes for weights in every for each in weights.values())


@dataclass(frozen=True)
class Answers:
    similarity: np.ndarray
    found: np.ndarray
    duplicates: np.ndarray
    #: Of each step from token ids and pixels to the answers, in order.
    receipts: tuple[ag.Receipt, ...]

    def difference(self, other: Answers) -> float:
        """Of similarities, the largest; infinite when another sentence was found, or another duplicate.

        On numpy the first calls of a process differ from later ones in the last bit, with a store and without.
        """
        if not (np.array_equal(self.found, other.found) and np.array_equal(self.duplicates, other.duplicates)):
            return math.inf
        return float(np.max(np.abs(self.similarity - other.similarity)))

    @property
    def bytes_to_host(self) -> int:
        """Between the models: the answers themselves are read after the last of them."""
        return sum(each.bytes_to_host for each in self.receipts)

    @property
    def peak_bytes(self) -> int | None:
        """The most that was in use on the device at once; `None` for engines that do not count it."""
        known = [each.peak_bytes for each in self.receipts if each.peak_bytes is not None]
        return max(known, default=None)


def answer(models: Models, given: Inputs) -> Answers:
    """Everything the application does once. Each step takes what the one before left on the device."""
    receipts: list[ag.Receipt] = []

    def step(function: Any, *arguments: Any) -> Any:
        done = ag.run(function, *arguments, on=models.device, fallback="raise")
        receipts.append(done.receipt)
        return done.value

    def encoded(tokens: tuple[np.ndarray, np.ndarray], text: Weights) -> Any:
        return step(minilm.pooled, step(minilm.hidden_states, *tokens, text), tokens[1])

    hidden = step(minilm.hidden_states, *given.captions, models.text["joint"])
    seen = step(vision.encode, given.images, models.image)
    texts, pictures = step(in_joint_space, hidden, given.captions[1], seen, models.projection)
    similarity = step(cosine_kernel(JOINT_WIDTH), texts, pictures)

    questions = encoded(given.questions, models.text["search"])
    found = step(best, questions, encoded(given.documents, models.text["search"]))

    repeated = encoded(given.repeated, models.text["duplicates"])
    duplicates = step(alike, step(cosine_kernel(minilm.WIDTH), repeated, repeated))
    return Answers(np.asarray(similarity), np.asarray(found), np.asarray(duplicates), tuple(receipts))


def on_device(weights: Mapping[str, np.ndarray], device: str) -> dict[str, Any]:
    return {name: ag.asarray(value, device=device) for name, value in weights.items()}


@dataclass(frozen=True)
class Layers:
    """How large the encoders are."""

    text: int = 6
    image: int = 4


WHOLE = Layers()


def without_store(device: str, layers: Layers) -> Models:
    """Each model has a text encoder of its own, as models that know nothing of each other have."""
    text = host_weights(layers.text)
    return Models(
        device=device,
        text={user: on_device(text, device) for user in USERS},
        image=on_device(vision.random_weights(layers.image), device),
        projection=on_device(random_projection(), device),
    )


def with_store(store: ag.Store, leases: ExitStack, layers: Layers) -> Models:
    """The text encoder is in the store once. Each model leases it, and it stays on the device until they are done."""
    names = list(stored_weights(store, layers.text))
    text: dict[str, Weights] = {}
    for user in USERS:
        for name in names:
            store.share(name, with_=[user])
        text[user] = {name: leases.enter_context(store.lease(name, holder=user)) for name in names}
    image = {
        name: store.put(name, value, owner="image", namespace="image")
        for name, value in vision.random_weights(layers.image).items()
    }
    projection = {
        name: store.put(name, value, owner="joint", namespace="joint") for name, value in random_projection().items()
    }
    return Models(store.device, text, image, projection)


@dataclass(frozen=True)
class Comparison:
    """The same models with a store and without."""

    together: Answers
    apart: Answers
    #: Bytes of weights on the device.
    bytes_together: int
    bytes_apart: int

    @property
    def ratio(self) -> float:
        return self.bytes_together / self.bytes_apart

    @property
    def peak_ratio(self) -> float | None:
        """The same by the engine's own count, with everything that is computed on the way."""
        together, apart = self.together.peak_bytes, self.apart.peak_bytes
        return together / apart if together is not None and apart is not None else None


def compare(device: str, given: Inputs, layers: Layers = WHOLE) -> Comparison:
    models = without_store(device, layers)
    apart, bytes_apart = answer(models, given), models.buffers
    del models
    with ag.Store(device=device) as store, ExitStack() as leases:
        together = answer(with_store(store, leases, layers), given)
        return Comparison(together, apart, store.statistics().device_bytes, bytes_apart)


def main(devices: Sequence[str] = ()) -> None:
    given = inputs()
    for device in devices or one_device_of_each_engine():
        found = compare(device, given)
        print(device)
        for receipt in found.together.receipts:
            print(f"    {receipt.task:<18}{receipt.seconds * 1e3:>9.1f} ms{receipt.bytes_to_host:>4} bytes to the host")
        print(f"    the answers differ by {found.together.difference(found.apart):.1e}")
        if found.peak_ratio is not None:
            print(f"    {found.apart.peak_bytes:>13,} bytes at most without the store, as {device} counts them")
            print(f"    {found.together.peak_bytes:>13,} with it: {found.peak_ratio:.2f} of that")
        print(f"    {found.bytes_apart:>13,} bytes of weights without the store")
        print(f"    {found.bytes_together:>13,} with it: {found.ratio:.2f} of that")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except minilm.NoWeights as missing:
        sys.exit(str(missing))
