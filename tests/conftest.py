from __future__ import annotations

import os

# SciPy's own switch for arrays that are not NumPy's; it is read once, when SciPy is first imported by anyone.
os.environ["SCIPY_ARRAY_API"] = "1"
