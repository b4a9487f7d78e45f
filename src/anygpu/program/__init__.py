"""Programs: what is to be computed, as data. Pure: no array is touched here, and nothing is computed."""
