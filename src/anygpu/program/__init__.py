"""Programs: what is to be computed, as data. Pure: no array is touched here, and nothing is computed."""

# Importing it tells pickle how programs are written.
from anygpu.program import wire as wire
