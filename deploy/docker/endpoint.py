"""The endpoint: connects to the cluster, and serves by the Open Inference Protocol v2 until it is told to stop."""

import os

from service import score  # your module and function

import anygpu as ag
from anygpu import fleet

with fleet.connect(os.environ["RAY_ADDRESS"]) as cluster:
    ag.serve(
        {"score": score},
        runtime=cluster,
        host=os.environ["ANYGPU_HOST"],
        port=8000,
        # Lines "tenant token": who may use the models, and whose quota that counts against.
        tokens=os.environ["ANYGPU_TENANTS"],
    )
