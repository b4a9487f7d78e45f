"""The same calls on a cluster: prices of options, on whatever device of whatever machine is done first.

Start a Ray cluster (`ray start --head --node-name=here`, and `ray start --address=...` on the other machines), then
`python -m examples.fleet`, or `python -m examples.fleet HOST:PORT`. It connects to any cluster, also one that asks for
no token: leave `insecure=True` out for yours.
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
            # The first call opens the device and compiles the program there, which takes a second or more.
            fleet.run(black_scholes, *given, on=name)
            result = fleet.run(black_scholes, *given, on=name)
            print(result.receipt)
            print(f"  {result.receipt.network_bytes:,} bytes went over the network to {result.receipt.node} and back")
            for ours, numpys in zip(result.value, expected, strict=True):
                np.testing.assert_allclose(ours, numpys, rtol=1e-3, atol=1e-3)
        spots = [given[0] + i for i in range(50)]
        outcomes = fleet.map(lambda spot: black_scholes(spot, *given[1:])[0], spots, on="fleet")
        machines = sorted({str(each.receipt.node or "this machine") for each in outcomes if each.receipt is not None})
        print(f"{len(outcomes)} calls ran on {', '.join(machines)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "auto")
