"""What a function returns with `offload` is what it returns without: a corpus of functions, and random ones."""

import os
import tempfile

# As in tests/conftest.py, also for `python -m tests.semantics`: nothing of the user's is read or changed.
os.environ.setdefault("ANYGPU_CACHE_DIR", tempfile.mkdtemp(prefix="anygpu-tests-"))
os.environ.setdefault("ANYGPU_TUNING_SECONDS", "0")
