"""Bearer tokens: who may ask, as which tenant, and for which models."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from anygpu.errors import InvalidOption
from anygpu.serving.limits import Refusal

#: Shorter tokens can be guessed.
MIN_LENGTH = 16

#: By token, the tenant; or the tenant and the models that it may use.
TokenMapping = Mapping[str, str | tuple[str, Sequence[str]]]


class Access(msgspec.Struct, frozen=True):
    """The tenant and models of a token."""

    tenant: str = "default"
    #: `None` for all models.
    models: frozenset[str] | None = None

    def check(self, model: str) -> None:
        if self.models is not None and model not in self.models:
            raise Refusal(403, f"this token does not allow {model}.")

    def check_metrics(self) -> None:
        """Metrics name all models and tenants: only tokens without a list of models may read them."""
        if self.models is not None:
            raise Refusal(403, "this token does not allow /metrics: it is limited to some models.")

    def allowed(self, models: Iterable[str]) -> list[str]:
        return [name for name in models if self.models is None or name in self.models]


#: For servers without tokens.
EVERYBODY = Access()


class Tokens:
    """The tokens of a server. How long a look takes does not depend on how much of a token is right."""

    def __init__(self, given: TokenMapping) -> None:
        if not given:
            raise InvalidOption("tokens= has no tokens: no client could use the server.")
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, Access] = {}
        for token, value in given.items():
            self._known[self._digest(_checked(token))] = _access(value)
        #: Different tenants.
        self.tenants = len({access.tenant for access in self._known.values()})

    def find(self, authorization: bytes | None) -> Access:
        """Raises a `Refusal` for a token that is missing or unknown."""
        if authorization is None:
            raise _unauthorised("a token is needed: send the header Authorization: Bearer TOKEN.", b"Bearer")
        scheme, _, token = authorization.partition(b" ")
        # Digests under a secret key: a dict may be used, because no client can choose digests that are nearly alike.
        digest = hmac.digest(self._key, token.strip(), hashlib.sha256)
        access = self._known.get(digest)
        if access is None or scheme.lower() != b"bearer":
            raise _unauthorised("this token is not known.", b'Bearer error="invalid_token"')
        return access

    def _digest(self, token: str) -> bytes:
        return hmac.digest(self._key, token.encode(), hashlib.sha256)


def tokens_of(given: TokenMapping | str | os.PathLike[str] | None) -> Tokens | None:
    """From a mapping, or from a file with lines "tenant token" or "tenant token model,model"."""
    if given is None:
        return None
    return Tokens(given if isinstance(given, Mapping) else read_tokens(Path(given)))


def read_tokens(path: Path) -> dict[str, tuple[str, Sequence[str]] | str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the tokens in {str(path)!r} cannot be read: {error}.") from None
    found: dict[str, tuple[str, Sequence[str]] | str] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3):
            # The line itself is not shown: it may have a token in it.
            raise InvalidOption(f'line {number} of {path} is not "tenant token" or "tenant token model,model".')
        tenant, token = words[:2]
        found[token] = tenant if len(words) == 2 else (tenant, words[2].split(","))
    return found


def _checked(token: object) -> str:
    if not isinstance(token, str) or len(token) < MIN_LENGTH:
        raise InvalidOption(
            f"a token has at least {MIN_LENGTH} characters. "
            'Make one with: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidOption("a token has only printable ASCII characters, and no spaces.")
    return token


def _access(value: Any) -> Access:
    if isinstance(value, str) and value:
        return Access(value)
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and not isinstance(value[1], str):
        return Access(value[0], frozenset(value[1]))
    raise InvalidOption(f"tokens= maps each token to a tenant, or to (tenant, models); got {value!r}.")


def _unauthorised(message: str, challenge: bytes) -> Refusal:
    return Refusal(401, message, [(b"www-authenticate", challenge)])
