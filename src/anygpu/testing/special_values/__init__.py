"""The table of special values: what every engine must make of zeros, infinities, NaN, limits, ties and overflow.

`cases` makes programs of every elementwise primitive, cast, comparison, reduction and scan with their inputs and what
plain NumPy makes of them; `tally` runs them on a device and counts the differences beyond the published tolerances.
"""

from anygpu.testing.special_values.tables import Amount, Difference, Tally, cases, tally

__all__ = ["Amount", "Difference", "Tally", "cases", "tally"]
