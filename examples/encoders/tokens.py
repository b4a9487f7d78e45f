"""WordPiece in plain Python: from a sentence to the numbers that a BERT model was trained with.

A text is cleaned, written in small letters without accents, and cut at blanks and punctuation; each word is then the
longest pieces of the vocabulary, from left to right.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

#: Ideographs are words by themselves. The blocks that BERT's own tokeniser names.
IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
#: Longer words are not looked for in the vocabulary.
LONGEST_WORD = 100


class Tokeniser:
    """The ids of texts, for one vocabulary."""

    def __init__(self, vocabulary: Mapping[str, int], longest: int = 256) -> None:
        self._ids = vocabulary
        #: Of a text, in tokens, with the one before it and the one after it.
        self.longest = longest

    @classmethod
    def load(cls, path: Path, longest: int = 256) -> Tokeniser:
        """From a tokenizer.json."""
        vocabulary = json.loads(path.read_text(encoding="utf-8"))["model"]["vocab"]
        return cls(vocabulary, longest)

    def ids(self, text: str) -> list[int]:
        pieces = [piece for word in words(text) for piece in self._pieces(word)]
        return [self._ids["[CLS]"], *pieces[: self.longest - 2], self._ids["[SEP]"]]

    def batch(self, texts: Sequence[str], multiple: int = 8) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, and which of them are there: int32 and bool, one row a text.

        Rows are filled up to a multiple, so that texts of about one length are one compiled program.
        """
        rows = [self.ids(text) for text in texts]
        width = -(-max(map(len, rows), default=1) // multiple) * multiple
        ids = np.full((len(rows), width), self._ids["[PAD]"], np.int32)
        there = np.zeros((len(rows), width), np.bool_)
        for row, found in enumerate(rows):
            ids[row, : len(found)] = found
            there[row, : len(found)] = True
        return ids, there

    def _pieces(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self._ids["[UNK]"]]
        pieces: list[int] = []
        begin = 0
        while begin < len(word):
            for end in range(len(word), begin, -1):
                piece = word[begin:end] if begin == 0 else f"##{word[begin:end]}"
                if piece in self._ids:
                    pieces.append(self._ids[piece])
                    begin = end
                    break
            else:
                return [self._ids["[UNK]"]]  # one piece is missing, so the word is unknown as a whole
        return pieces


def words(text: str) -> Iterator[str]:
    """Cut at blanks; punctuation and ideographs are words of one character."""
    for run in _plain(text).split():
        begin = 0
        for position, character in enumerate(run):
            if _is_punctuation(character):
                if begin < position:
                    yield run[begin:position]
                yield character
                begin = position + 1
        if begin < len(run):
            yield run[begin:]


def _plain(text: str) -> str:
    """Small letters without accents, and without what cannot be seen."""
    seen = "".join(_spaced(each) for each in text if not _is_control(each))
    apart = unicodedata.normalize("NFD", seen)
    return "".join(each for each in apart if unicodedata.category(each) != "Mn").lower()


def _spaced(character: str) -> str:
    if _is_ideograph(character):
        return f" {character} "
    return " " if character in "\t\n\r" or unicodedata.category(character) == "Zs" else character


def _is_control(character: str) -> bool:
    if character in "\t\n\r":
        return False
    return character in "\0�" or unicodedata.category(character) in ("Cc", "Cf", "Co", "Cs")


def _is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in IDEOGRAPHS)


def _is_punctuation(character: str) -> bool:
    """Everything in ASCII that is neither letter, digit nor blank counts, as "$" does, which Unicode calls a symbol."""
    code = ord(character)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(character).startswith("P")
