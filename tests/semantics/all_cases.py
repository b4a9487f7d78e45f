"""Every case of the corpus, by its name."""

from __future__ import annotations

import importlib
import pkgutil

from tests.semantics import corpus
from tests.semantics.cases import CASES

for each in pkgutil.iter_modules(corpus.__path__):
    importlib.import_module(f"{corpus.__name__}.{each.name}")

__all__ = ["CASES"]
