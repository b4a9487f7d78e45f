"""Runs in the application before its own code: if it was started as a child of anygpu, it is one and nothing else.

It does not import anygpu otherwise, so that an application which uses it late does not start later. The two names are
those of `anygpu.workers.child_start`.
"""

import sys

sys._anygpu_application = sys.executable  # type: ignore[attr-defined]

if sys.argv[1:2] == ["--anygpu-worker"]:
    from anygpu.workers.child_start import serve_if_worker

    serve_if_worker()
