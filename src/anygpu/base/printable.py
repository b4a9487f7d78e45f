"""Text that others have chosen, such as the names of functions and files, on a screen, on a page or in a record."""

from __future__ import annotations

from typing import Any

import msgspec


def printable(text: str, most: int = 500) -> str:
    """In one line, without anything that a terminal would obey: no escapes, and nothing that turns the direction."""
    if len(text) > most:  # cut first: what is left is looked at letter by letter
        text = text[: most - 1] + "…"
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def encode_json(record: object) -> bytes:
    """The record as JSON. Paths and names that are not UTF-8 are escaped, where msgspec would raise."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_escaped(msgspec.to_builtins(record, str_keys=True)))


def encode_msgpack(record: object) -> bytes:
    """The same as MessagePack."""
    try:
        return msgspec.msgpack.encode(record)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_escaped(msgspec.to_builtins(record, builtin_types=(bytes,))))


def encodable(text: str) -> str:
    r"""The text with half surrogates, as paths have them that are not UTF-8, written as `\udce9`."""
    return text.encode("utf-8", "backslashreplace").decode()


def _escaped(value: Any) -> Any:
    """Returns plain values with every text made encodable, keys of dictionaries too; tuples become lists."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    if isinstance(value, dict):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    return value
