"""Cases that are wrong today, each with its cause. It is to stay as good as empty."""

KNOWN_FAILURES: dict[str, str] = {
    "asking.abstract_hashable": "Hashable looks at a class. While a function is recorded that of its arrays has a "
    "hash, which stops the recording; without one, a hash of NumPy's numbers would not be noticed",
}

_WARNED_IN_THE_TRACE = "tracing calls np.mean of an empty array, and Python's warning of it is heard twice"
_SIGN_OF_NAN = "the sign of a NaN is another one than NumPy's loop gives"
#: The seeds of random functions that differ from NumPy today, of those that the tests try.
KNOWN_DIFFERENCES: dict[int, str] = {
    398: "NumPy warns of logaddexp of a NaN; our finder of errors looks at what it is made of, which gives none",
    670: _WARNED_IN_THE_TRACE,
    886: "NumPy warns of a complex infinity times a real number, of which it makes 0 * inf; no result shows it",
    1563: "a complex infinity divided in linalg.solve has a NaN as its real part",
    1898: "np.imag of real numbers in F order has F order on NumPy",
    2018: "products of complex infinities are infinite, where NumPy's BLAS has NaN",
    2050: "a product of cube roots is another in the last digit, for which the test has no bound",
}
#: Those that differ with `exact=True`.
KNOWN_DIFFERENCES_EXACT: dict[int, str] = {
    668: _SIGN_OF_NAN,
    670: _WARNED_IN_THE_TRACE,
    921: _SIGN_OF_NAN,
    1076: _SIGN_OF_NAN,
    1358: _SIGN_OF_NAN,
    1652: _SIGN_OF_NAN,
}
