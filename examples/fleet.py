"""The same calls on a cluster: prices of options, on whatever device of whatever machine is done first.

Start a Ray cluster (`ray start --head --node-name=here`, and `ray start --address=...` on the other machines), then
`python -m examples.fleet`, or `python -m examples.fleet HOST:PORT`.
"""

from __future__ import annotations

import sys

import numpy as np

import anygpu as ag
from examples.black_scholes import black_scholes, inputs


def main(address: str) -> None:
    """Price options there, and say what happened."""
    with ag.fleet.connect(address, insecure=True) as fleet:
        for device in fleet.devices():
            print(device)
        given = inputs(np.random.default_rng(0))
        print(fleet.explain(black_scholes, *given))
        expected = black_scholes(*given)
        for name in [device.id for device in fleet.devices() if device.node]:
            result = fleet.run(black_scholes, *given, on=name)
            print(result.receipt)
            print(f"{name}: {result.receipt.network_bytes:,} bytes over the network, {result.receipt.asks} asks")
            for ours, numpys in zip(result.value, expected, strict=True):
                np.testing.assert_allclose(ours, numpys, rtol=1e-3, atol=1e-3)
        outcomes = fleet.map(lambda spot: black_scholes(spot, *given[1:])[0], [given[0] + i for i in range(200)])
        machines = {outcome.receipt.node for outcome in outcomes if outcome.receipt is not None}
        print(f"{len(outcomes)} calls, on {sorted(str(machine or 'this machine') for machine in machines)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "auto")
