"""A service in miniature: callers of two functions share one runtime, the urgent go first, and none waits for ever.

`python -m examples.service` starts it, sends it some requests, prints the receipts, and stops it as systemd or
Kubernetes would: with SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

import anygpu as ag

#: A request is one line of JSON, at most so long, and comes within so many seconds.
LONGEST_LINE, SECONDS_FOR_A_LINE = 1 << 20, 10.0
#: How long the service waits for what runs when it is to stop.
SECONDS_FOR_DRAINING = 20.0


def level(samples: Any) -> Any:
    """How loud it is: small, and somebody waits for it."""
    return np.sqrt(np.mean(samples * samples))


def similarity(signals: Any) -> Any:
    """How alike signals are, each with each: larger, and nobody is in a hurry."""
    centred = signals - signals.mean(axis=1, keepdims=True)
    length = np.sqrt((centred * centred).sum(axis=1, keepdims=True))
    return (centred @ centred.T) / (length * length.T)


class Offer(NamedTuple):
    """What can be asked for, and how it is treated."""

    function: Callable[..., Any]
    priority: int
    deadline: float


OFFERS = {
    "level": Offer(level, priority=8, deadline=2.0),
    "similarity": Offer(similarity, priority=0, deadline=30.0),
}


class Service:
    """Answers lines of JSON with lines of JSON. All connections share one runtime."""

    def __init__(self, runtime: ag.Runtime) -> None:
        self._runtime = runtime

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await asyncio.wait_for(reader.readline(), SECONDS_FOR_A_LINE):
                writer.write(json.dumps(await self.answer(line)).encode() + b"\n")
                await writer.drain()
        except (TimeoutError, ValueError, ConnectionError):
            pass  # a caller that is silent, sends a line that is too long, or is gone
        finally:
            writer.close()

    async def answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            if request["do"] == "health":
                health = self._runtime.health()
                return {"ok": health.ok, "health": msgspec.to_builtins(health)}
            offer, values = OFFERS[request["do"]], np.array(request["values"], np.float32)
        except (ValueError, KeyError, TypeError) as error:
            return {"ok": False, "error": f"not a request: {error!r}"}
        try:
            future = self._runtime.submit(offer.function, values, priority=offer.priority, deadline=offer.deadline)
            value = await future
        except ag.Overloaded as error:  # nothing of it was run: its caller may try again later
            return {"ok": False, "error": str(error), "again": True}
        except ag.AnyGPUError as error:
            return {"ok": False, "error": str(error)}
        except (ValueError, TypeError, ArithmeticError) as error:
            return {"ok": False, "error": f"the values do not fit: {error}"}
        return {"ok": True, "value": np.asarray(value).tolist(), "receipt": str(future.receipt)}


async def serve(started: Callable[[int], None], stop: asyncio.Event, port: int = 0) -> bool:
    """Serve until it is to stop; then finish what was begun. Whether all of it was done in time."""
    runtime = ag.Runtime(queue=200, deadline=60.0)
    service = Service(runtime)
    server = await asyncio.start_server(service.connection, "127.0.0.1", port, limit=LONGEST_LINE)
    try:
        started(server.sockets[0].getsockname()[1])
        await stop.wait()
        server.close()  # those that are connected may still ask, and are told that it is closing
        return await asyncio.to_thread(runtime.drain, SECONDS_FOR_DRAINING)
    finally:
        await asyncio.to_thread(runtime.close)


# -- callers, who would be elsewhere


async def ask(port: int, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    answers = []
    for request in requests:
        writer.write(json.dumps(request).encode() + b"\n")
        answers.append(json.loads(await reader.readline()))
    writer.close()
    return answers


async def main() -> None:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    serving = asyncio.create_task(serve(ready.set_result, stop))
    port = await ready
    rng = np.random.default_rng(0)
    bulk = [{"do": "similarity", "values": rng.random((40, 100)).tolist()} for _ in range(3)]
    urgent = [{"do": "level", "values": rng.random(256).tolist()} for _ in range(3)]
    wrong: list[dict[str, Any]] = [{"do": "level", "values": ["loud"]}, {"do": "dance"}]
    answers = await asyncio.gather(ask(port, bulk), ask(port, urgent), ask(port, wrong))
    for answer in [answer for some in answers for answer in some]:
        print(answer["receipt"] if answer["ok"] else answer["error"])
    [health] = await ask(port, [{"do": "health"}])
    print(f"healthy: {health['ok']}, done: {sum(lane['done'] for lane in health['health']['lanes'])}")
    os.kill(os.getpid(), signal.SIGTERM)
    print(f"all was done before it stopped: {await serving}")


if __name__ == "__main__":
    asyncio.run(main())
