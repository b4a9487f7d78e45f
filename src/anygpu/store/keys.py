"""Names of tensors: a namespace is one string or several, and is never split at some character."""

from __future__ import annotations

from anygpu.errors import InvalidOption

#: The namespace, and the name last.
Key = tuple[str, ...]
#: One namespace, or several, each nested in the one before; "" is none.
Path = str | tuple[str, ...]


def key_of(namespace: Path, name: str) -> Key:
    """The namespace, and the name last."""
    path = namespace if isinstance(namespace, tuple) else (namespace,) if namespace else ()
    for each in (*path, name):
        if not isinstance(each, str):
            raise InvalidOption(f"names and namespaces of tensors are strings; got {each!r}.")
    return (*path, name)
