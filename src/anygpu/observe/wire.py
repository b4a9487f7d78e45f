"""The messages between an observed process and its clients: a length in four bytes, and so many bytes of MessagePack.

One question a connection. Lengths are looked at before anything is read, and what is not exactly a question is nothing.
"""

from __future__ import annotations

import struct

import msgspec

from anygpu.base.printable import encode_msgpack
from anygpu.observe.snapshot import Snapshot

#: A question is a few dozen bytes; an answer with 200 functions on five devices and a thousand calls, some 600,000.
MOST_QUESTION, MOST_ANSWER = 1 << 10, 16 << 20
#: Characters of the tokens of listeners on the loopback address.
MOST_TOKEN = 64

_LENGTH = struct.Struct(">I")
HEAD = _LENGTH.size


class Question(msgspec.Struct, frozen=True, tag="snapshot", tag_field="ask", forbid_unknown_fields=True):
    """Asks for a snapshot."""

    #: Single calls after this number are wanted; `None` for no single calls.
    since: int | None = 0
    #: On the loopback address, who asks must know it.
    token: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot, with a token that proves its sender."""

    snapshot: Snapshot
    token: str = ""


_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Answer)


class Refused(Exception):
    """The bytes that came are no message."""


def framed(message: Question | Answer) -> bytes:
    content = encode_msgpack(message)
    return _LENGTH.pack(len(content)) + content


def length_of(head: bytes | bytearray, most: int) -> int:
    """The length of the message that follows. Raises `Refused` if it would be longer than any."""
    (length,) = _LENGTH.unpack(head[:HEAD])
    if not 0 < length <= most:
        raise Refused(f"a message of {length} bytes, and at most {most} are allowed")
    return int(length)


def question_of(content: bytes | bytearray) -> Question:
    """Raises `Refused`."""
    try:
        question = _questions.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused("not a question") from error
    if not (question.since is None or 0 <= question.since < 1 << 63) or len(question.token) > MOST_TOKEN:
        raise Refused("not a question")
    return question


def answer_of(content: bytes | bytearray) -> Answer:
    """Raises `Refused`."""
    try:
        return _answers.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused("not an answer of this version of anygpu") from error
