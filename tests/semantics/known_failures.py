"""Cases that are wrong today, each with its cause. It is to stay as good as empty."""

KNOWN_FAILURES: dict[str, str] = {
    "asking.abstract_hashable": "Hashable looks at a class. While a function is recorded that of its arrays has a "
    "hash, which stops the recording; without one, a hash of NumPy's numbers would not be noticed",
}

_SIGN_OF_NAN = "the sign of a NaN is another one than NumPy's loop gives"
#: The seeds of random functions that differ from NumPy today, of those that the tests try.
KNOWN_DIFFERENCES: dict[int, str] = {
    886: "NumPy warns of a complex infinity times a real number, of which it makes 0 * inf; no result shows it",
    1898: "np.imag of real numbers in F order has F order on NumPy",
}
#: Those that differ with `exact=True`.
KNOWN_DIFFERENCES_EXACT: dict[int, str] = {
    668: _SIGN_OF_NAN,
    670: "tracing calls np.mean of an empty array, and Python's warning of it is heard twice",
    921: _SIGN_OF_NAN,
    1076: _SIGN_OF_NAN,
    1358: _SIGN_OF_NAN,
    1652: _SIGN_OF_NAN,
}
