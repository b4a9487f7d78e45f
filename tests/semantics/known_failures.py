"""Cases that are wrong today, each with its cause. It is to stay as good as empty."""

KNOWN_FAILURES: dict[str, str] = {
    "asking.abstract_hashable": "Hashable looks at a class. While a function is recorded that of its arrays has a "
    "hash, which stops the recording; without one, a hash of NumPy's numbers would not be noticed",
}

#: The seeds of random functions that differ from NumPy today, of those that the tests try; and those that do with
#: `exact=True`.
KNOWN_DIFFERENCES: dict[int, str] = {}
KNOWN_DIFFERENCES_EXACT: dict[int, str] = {}
