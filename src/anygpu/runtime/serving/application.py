"""The server without its sockets: an ASGI application over a runtime.

It is written to ASGI itself and not to a framework: routing here is one look into a dict, and a framework's layers cost
a third of the requests per second.

`Application` answers requests; the functions after it read their headers and wait for their tasks; `Metrics` counts
them for Prometheus. All of it runs on one event loop, but for bodies of more than a megabyte, which are parsed and
encoded on other threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import msgspec

from anygpu.base import events, version
from anygpu.base.metric_families import Family, Sample, histogram_samples, single, to_text
from anygpu.base.printable import encode_json
from anygpu.runtime.health import Health, runtime_families
from anygpu.runtime.serving.limits import (
    EVERYBODY,
    MAX_HEADERS,
    HeldRequests,
    InvalidRequest,
    Limits,
    RequestRefused,
    TokenAccess,
    Tokens,
    refusal_of,
    refusal_of_page,
    too_large,
    try_again,
)
from anygpu.runtime.serving.models import VERSION, Model
from anygpu.runtime.serving.protocol import Response, answer, parse

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
AsgiSend = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Headers = list[tuple[bytes, bytes]]

_log = logging.getLogger(__name__)

#: The seconds that a request may take, beside the protocol's own parameter `timeout`.
TIMEOUT_HEADER = "X-Request-Timeout"
#: Larger bodies are parsed on another thread, and other requests go on meanwhile.
_LARGE = 1 << 20
#: After this many seconds it is watched whether the caller is still there.
_WATCHED_AFTER = 0.25

#: The status under which requests are counted whose callers did not wait, as nginx has it.
_CALLER_GONE = 499

_JSON: _Headers = [(b"content-type", b"application/json")]
_TEXT: _Headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_BINARY = (b"content-type", b"application/octet-stream")
_CLOSE = (b"connection", b"close")
#: Headers with a single value.
_SINGLE = frozenset((b"content-length", b"inference-header-content-length", b"authorization", b"x-request-timeout"))


class ServingRuntime(Protocol):
    """The part of a runtime that serving needs: a `Runtime` is one, and so is anything else with these methods."""

    @property
    def waiting(self) -> int: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **given: Any) -> Any:
        """A future that can be awaited, and cancelled."""

    def health(self) -> Health: ...


class _Body:
    """The body of a request, as far as it has arrived."""

    __slots__ = ("data", "held", "tenant")

    def __init__(self) -> None:
        self.data: bytes | bytearray = b""
        #: Bytes that are counted as held.
        self.held = 0
        #: Whose request is counted as open; `None` before that is known.
        self.tenant: str | None = None


class _RequestHeaders(NamedTuple):
    """The headers that matter: lengths in bytes, the token, and the seconds that the request may take."""

    length: int | None = None
    json_length: int | None = None
    authorization: bytes | None = None
    timeout: float | None = None


class Application:
    """Answers requests. One event loop uses it.

    Every request gets an answer, with a status and a sentence for errors; those whose callers have gone are counted
    under 499. What requests hold is bounded by `limits`, in all and for each tenant.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        runtime: ServingRuntime,
        *,
        tokens: Tokens | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> None:
        self._models = models
        self._runtime = runtime
        self._tokens = tokens
        self._limits = limits if limits is not None else Limits()
        #: The most seconds that a request may ask for; `None` for the runtime's own.
        self._deadline = deadline
        self._held = HeldRequests(self._limits, tenants=1 if tokens is None else tokens.tenants)
        #: Names of hosts that requests may be for, if pages of a browser are refused.
        self.hosts: tuple[str, ...] | None = None
        self.metrics = Metrics()
        #: Requests that were cut off when the server ended.
        self.unanswered = 0
        #: Whether it takes no new connections: requests are still answered, and their connections closed.
        self.draining = False
        self._infer_paths = {
            f"/v2/models/{name}{version}/infer": model
            for name, model in models.items()
            for version in ("", f"/versions/{VERSION}")
        }

    async def __call__(self, scope: AsgiScope, receive: Receive, send: AsgiSend) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] != "http":
            return
        model = self._infer_paths.get(scope["path"])
        self.metrics.open += 1
        try:
            if model is not None and scope["method"] == "POST":
                await self._infer(model, scope, receive, send)
            else:
                await self._other(scope, send)
        except asyncio.CancelledError:
            self.unanswered += 1
            raise
        finally:
            self.metrics.open -= 1

    @property
    def is_ready(self) -> bool:
        """Whether new requests are welcome: it does not drain, and the runtime is healthy."""
        return not self.draining and self._runtime.health().ok

    # -- inference

    async def _infer(self, model: Model, scope: AsgiScope, receive: Receive, send: AsgiSend) -> None:
        """Answers a request for inference: checks its token, reads its body, computes, and counts it.

        Errors become refusals; those that are neither the caller's nor expected are logged. What the request holds is
        released before the answer is sent.
        """
        began = time.perf_counter()
        access, status, body = EVERYBODY, _CALLER_GONE, _Body()
        try:
            headers = self._headers(scope)
            access = self._access(headers, model.name)
            self._enter(body, access.tenant)
            await self._read(body, headers.length, receive)
            response = await self._computed(model, body.data, headers, access, receive)
            status, extra = 200, self._response_headers(response)
        except _CallerGone:
            return
        except Exception as error:  # noqa: BLE001 - every request gets an answer
            refusal = refusal_of(error, model.name, self._retry_seconds())
            if refusal.status == 500 and not isinstance(error, RequestRefused):
                _log.error("%s failed", model.name, exc_info=error)
            response, status = Response(_error(refusal)), refusal.status
            extra = [*_JSON, *refusal.headers]
        finally:
            if body.tenant is not None:
                self._held.release(body.tenant, body.held)
                self._held.leave(body.tenant)
            self.metrics.answered(model.name, access.tenant, status, began, time.perf_counter())
        self.metrics.moved(len(body.data), len(response.body))
        body.data = b""
        await self._send(send, status, response.body, extra, access.tenant)

    def _headers(self, scope: AsgiScope) -> _RequestHeaders:
        """Reads the headers that matter. Raises `RequestRefused` for requests of a browser's page, if told to."""
        if self.hosts is not None:
            hosts, origins = (
                [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
                for wanted in (b"host", b"origin")
            )
            reason = refusal_of_page(hosts, origins, self.hosts)
            if reason is not None:
                raise RequestRefused(403, reason)
        return _read_headers(scope["headers"])

    def _enter(self, body: _Body, tenant: str) -> None:
        """Counts the request as open. Raises `RequestRefused` (429) if its tenant has too many."""
        if not self._held.enter(tenant):
            message = "too many requests of this tenant are open. Try again later."
            raise try_again(429, message, self._retry_seconds())
        body.tenant = tenant

    def _access(self, headers: _RequestHeaders, model: str) -> TokenAccess:
        """The tenant and models of the request's token.

        Raises `RequestRefused` for a token that does not allow the model.
        """
        if self._tokens is None:
            return EVERYBODY
        access = self._tokens.find(headers.authorization)
        access.check(model)
        return access

    async def _read(self, body: _Body, length: int | None, receive: Receive) -> None:
        """Reads all of the body, if the limits allow it. Bytes are counted when they have arrived, and not before.

        A length that is announced and too large is refused before anything is read. Raises `RequestRefused`: 408 if the
        body is late, 413 if it is too large, 429 if the server holds too much.
        """
        if length is not None:
            self._check_length(length)
        seconds = self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                message = await receive()
                body.data = _part(message)
                self._count(body)
                if not message.get("more_body"):
                    return
                data = body.data = bytearray(body.data)
                while message.get("more_body"):
                    message = await receive()
                    data += _part(message)
                    self._count(body)
        except TimeoutError:
            raise RequestRefused(408, f"the body did not arrive within {seconds:g} s.", [_CLOSE]) from None

    def _check_length(self, length: int) -> None:
        """Raises `RequestRefused` (413) for a body above the limit."""
        if length > self._limits.body:
            raise too_large(f"a request has at most {self._limits.body:,} bytes; this one has {length:,} or more.")

    def _count(self, body: _Body) -> None:
        """Counts the bytes that have arrived since the last time as held by the tenant."""
        length = len(body.data)
        self._check_length(length)
        assert body.tenant is not None
        if not self._held.grow(body.tenant, length - body.held):
            message = "the server holds too many large requests already. Try again later."
            raise try_again(429, message, self._retry_seconds())
        body.held = length

    async def _computed(
        self, model: Model, body: bytes | bytearray, headers: _RequestHeaders, access: TokenAccess, receive: Receive
    ) -> Response:
        """Parses a body, calls the model through the runtime, and encodes its results.

        The least of the caller's, the request's and the server's time is its deadline. The task is cancelled if the
        caller goes.
        """
        if len(body) < _LARGE:
            request = parse(body, headers.json_length, self._limits)
        else:
            request = await asyncio.to_thread(parse, body, headers.json_length, self._limits)
        function, arguments = model.call(request.inputs)
        options: dict[str, Any] = {} if access is EVERYBODY else {"tenant": access.tenant}
        seconds = _least(headers.timeout, request.timeout)
        if seconds is not None:
            options["deadline"] = _least(seconds, self._deadline)
        future = self._runtime.submit(function, *arguments, **options)
        outputs = model.outputs(await _result(future, receive))
        model.learn(request.inputs, outputs)
        if sum([each.nbytes for each in outputs.values()]) < _LARGE:
            return answer(request, model.name, VERSION, outputs)
        return await asyncio.to_thread(answer, request, model.name, VERSION, outputs)

    def _retry_seconds(self) -> float:
        """Seconds after which a refused caller may come again, by what waits now."""
        return self.metrics.retry_seconds(self._runtime.waiting)

    def _response_headers(self, response: Response) -> _Headers:
        """The headers of a result: JSON alone, or JSON of a length followed by binary data."""
        if response.json_length is None:
            return _JSON
        return [_BINARY, (b"inference-header-content-length", b"%d" % response.json_length)]

    # -- everything else

    async def _other(self, scope: AsgiScope, send: AsgiSend) -> None:
        """Answer everything but inference: health, metrics, and the description of the server and its models."""
        extra, status = _JSON, 200
        try:
            method, parts = scope["method"], scope["path"].strip("/").split("/")
            if parts[:2] == ["v2", "health"] and len(parts) == 3 and method in ("GET", "HEAD"):
                # Without a token, and for any host: probes ask for the address of the machine.
                status, body = self._health(parts[2])
            else:
                headers = self._headers(scope)
                access = EVERYBODY if self._tokens is None else self._tokens.find(headers.authorization)
                if parts == ["metrics"] and method == "GET":
                    access.check_metrics()
                    # Thousands of series take a while; other requests go on meanwhile.
                    extra, body = _TEXT, await asyncio.to_thread(self._metrics) if events.scrapes else self._metrics()
                else:
                    status, body = self._described(method, parts, access)
        except RequestRefused as refusal:
            status, body, extra = refusal.status, _error(refusal), [*_JSON, *refusal.headers]
        await self._send(send, status, b"" if scope["method"] == "HEAD" else body, extra)

    def _health(self, what: str) -> tuple[int, bytes]:
        """The status and document of a health check: live always, ready unless it drains or the runtime is late."""
        if what not in ("live", "ready"):
            raise RequestRefused(404, "no such health check; available: /v2/health/live, /v2/health/ready.")
        ok = what == "live" or self.is_ready
        return 200 if ok else 503, msgspec.json.encode({what: ok})

    def _metrics(self) -> bytes:
        """The text for Prometheus: of the server, its runtime and, if observed, the process."""
        health = self._runtime.health()
        ready = health.ok and not self.draining
        return self.metrics.to_text(health, self._held.total, ready=ready).encode()

    def _described(self, method: str, parts: list[str], access: TokenAccess) -> tuple[int, bytes]:
        """The status and document of a path that describes the server or a model.

        Raises `RequestRefused` for others.
        """
        match parts:
            case ["v2"]:
                found: Any = {"name": "anygpu", "version": version.__version__, "extensions": ["binary_tensor_data"]}
            case ["v2", "models"]:
                found = {"models": access.allowed(self._models)}
            case ["v2", "models", name, *rest]:
                return self._model(method, name, rest, access)
            case _:
                raise RequestRefused(404, "there is nothing here; see /v2/models.")
        _check_method(method, "GET")
        return 200, msgspec.json.encode(found)

    def _model(self, method: str, name: str, rest: list[str], access: TokenAccess) -> tuple[int, bytes]:
        """The status and document of a model: its description, or whether it is ready."""
        access.check(name)
        model = self._models.get(name)
        if model is None:
            available = ", ".join(access.allowed(self._models)) or "none"
            raise RequestRefused(404, f"there is no model {name[:64]!r}; available: {available}.")
        if rest[:1] == ["versions"]:
            if rest[1:2] != [VERSION]:
                raise RequestRefused(404, f"{name} has the version {VERSION} alone.")
            rest = rest[2:]
        match rest:
            case []:
                _check_method(method, "GET")
                return 200, msgspec.json.encode(model.metadata())
            case ["ready"]:
                _check_method(method, "GET")
                ready = self.is_ready
                return 200 if ready else 503, msgspec.json.encode({"name": name, "ready": ready})
            case ["infer"]:
                _check_method(method, "POST")
        raise RequestRefused(404, f"{name} has /ready and /infer.")

    async def _send(
        self, send: AsgiSend, status: int, body: bytes, headers: _Headers, tenant: str = EVERYBODY.tenant
    ) -> None:
        """Sends a response; large bodies in parts, so that other requests are served in between.

        Each part waits until the client has read enough, and what it has not read is counted as held. While the server
        drains, the connection is closed after it.
        """
        headers = [(b"content-length", b"%d" % len(body)), *headers]
        if self.draining and _CLOSE not in headers:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if len(body) <= _LARGE:
            await send({"type": "http.response.body", "body": body})
            return
        # In parts, so that `send` waits for the client: what it has not read is held.
        self._held.add(tenant, len(body))
        try:
            view = memoryview(body)
            for begin in range(0, len(body), _LARGE):
                part = view[begin : begin + _LARGE]
                more = begin + _LARGE < len(body)
                await send({"type": "http.response.body", "body": part, "more_body": more})
        finally:
            self._held.release(tenant, len(body))


# -- requests


class _CallerGone(Exception):
    """The caller has closed the connection before its response was there."""


def _part(message: Mapping[str, Any]) -> bytes:
    """The bytes of one message of the body. Raises `_CallerGone` for the end of the connection."""
    if message["type"] != "http.request":
        raise _CallerGone
    part: bytes = message["body"]
    return part


def _read_headers(headers: _Headers) -> _RequestHeaders:
    """Return the headers that matter. Raises `RequestRefused` for a malformed one, and for too many.

    A header with a single value must not come twice (RFC 9110, 5.3): a proxy in front may have looked at the other. A
    second `Authorization` is a malformed request, 400, and not a wrong token (RFC 6750, 3.1).
    """
    if len(headers) > MAX_HEADERS:
        raise RequestRefused(431, f"a request has at most {MAX_HEADERS} headers, not {len(headers)}.", [_CLOSE])
    length = json_length = authorization = timeout = None
    met: set[bytes] = set()
    for name, value in headers:
        if name in _SINGLE:
            if name in met:
                challenge = [(b"www-authenticate", b'Bearer error="invalid_request"')]
                message = f"the header {name.decode().title()} was sent twice. Send it once."
                raise RequestRefused(400, message, challenge if name == b"authorization" else ())
            met.add(name)
        if name == b"content-length":
            length = _whole_number("Content-Length", value)
        elif name == b"inference-header-content-length":
            json_length = _whole_number("Inference-Header-Content-Length", value)
        elif name == b"authorization":
            authorization = value
        elif name == b"x-request-timeout":
            timeout = _seconds(value)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise RequestRefused(415, "compressed requests are not supported; send it without Content-Encoding.")
    return _RequestHeaders(length, json_length, authorization, timeout)


def _whole_number(name: str, value: bytes) -> int:
    """A length in a header. Raises `InvalidRequest` for anything but at most 15 digits."""
    # Of so many digits that no time is spent on them.
    if not value.isdigit() or len(value) > 15:
        raise InvalidRequest(f"{name} is not a number of bytes.")
    return int(value)


def _seconds(value: bytes) -> float:
    """The seconds in a header. Raises `InvalidRequest` unless they are a positive number."""
    try:
        seconds = float(value[:32])
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InvalidRequest(f"{TIMEOUT_HEADER} is a number of seconds, more than 0.")
    return seconds


def _least(one: float | None, other: float | None) -> float | None:
    """The smaller of two times, of which either may be missing."""
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)


async def _result(future: Any, receive: Receive) -> Any:
    """Waits for the result of a task. A caller that is gone meanwhile takes its task out of the queue.

    Watching the caller begins after a quarter of a second: most tasks end earlier, and it costs a task of the loop.
    Raises `_CallerGone`, or 503 if the runtime cancelled the task because it closes.
    """
    watch: asyncio.Task[None] | None = None

    def begin() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(_cancel_when_gone(future, receive))

    timer = asyncio.get_running_loop().call_later(_WATCHED_AFTER, begin)
    try:
        return await future
    except asyncio.CancelledError:
        if watch is not None and watch.done() and not watch.cancelled():
            raise _CallerGone from None
        if future.cancelled() and not _is_cancelled():
            raise try_again(503, "the server is shutting down. Try another one.", 1.0) from None
        raise
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()


async def _cancel_when_gone(future: Any, receive: Receive) -> None:
    """Cancels the future as soon as the caller closes the connection."""
    while (await receive())["type"] == "http.request":
        pass  # an empty end of the body
    future.cancel()


def _is_cancelled() -> bool:
    """Whether the task of this request was itself cancelled, and not only the future that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _check_method(method: str, allowed: str) -> None:
    """Raises `RequestRefused` (405) for another method; HEAD is allowed where GET is."""
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        raise RequestRefused(405, f"only {allowed} is allowed here.", [(b"allow", allowed.encode())])


def _error(refusal: RequestRefused) -> bytes:
    """The body of an error as the protocol has it: JSON with one field."""
    return encode_json({"error": refusal.message})


#: Upper bounds of the latency histogram, in seconds.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

#: The weight of the newest time between two responses in their average.
_NEWEST = 0.05


class _Histogram:
    """Counts of seconds in Prometheus' buckets, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def up_to(self) -> list[int]:
        """The counts up to each bound, and of all."""
        return [*accumulate(self.counts)]


class Metrics:
    """Counts and latencies of one server's requests, as Prometheus reads them. Kept by its event loop.

    The average time between two answers tells refused callers when to come again.
    """

    def __init__(self) -> None:
        #: Requests that are open.
        self.open = 0
        self._requests: dict[tuple[str, str, int], int] = {}
        self._seconds: dict[str, _Histogram] = {}
        self._bytes_in = 0
        self._bytes_out = 0
        self._last_answer: float | None = None
        self._between = 0.0

    def answered(self, model: str, tenant: str, status: int, began: float, now: float) -> None:
        """Counts an inference request that has its response; latencies are those of status 200.

        Times are in seconds.
        """
        key = (model, tenant, status)
        self._requests[key] = self._requests.get(key, 0) + 1
        if status != 200:
            return
        histogram = self._seconds.get(model)
        if histogram is None:
            histogram = self._seconds[model] = _Histogram()
        histogram.add(now - began)
        if self._last_answer is not None:
            self._between += _NEWEST * (now - self._last_answer - self._between)
        self._last_answer = now

    def moved(self, received: int, sent: int) -> None:
        """Counts the bytes of a request's body and of its response."""
        self._bytes_in += received
        self._bytes_out += sent

    def retry_seconds(self, waiting: int) -> float:
        """About how long half of what waits now will take, in seconds, from 1 to 60."""
        return min(60.0, max(1.0, waiting * self._between / 2))

    def to_text(self, health: Health, held_bytes: int, *, ready: bool) -> str:
        """Metrics of the server and its runtime, and of the calls of the whole process if it is observed."""
        families = [*self._families(held_bytes, ready), *runtime_families(health)]
        return to_text([*families, *(each for scrape in events.scrapes for each in scrape())])

    def _families(self, held_bytes: int, ready: bool) -> Iterator[Family]:
        """The metrics of the server: requests, their seconds, and those that are open."""
        yield Family(
            "anygpu_requests_total",
            "counter",
            "Inference requests by model, tenant and status.",
            [
                Sample(count, {"model": model, "tenant": tenant, "status": str(status)})
                for (model, tenant, status), count in self._requests.items()
            ],
        )
        yield Family(
            "anygpu_request_seconds",
            "histogram",
            "Time from request to response, for status 200.",
            [
                sample
                for model, histogram in self._seconds.items()
                for sample in histogram_samples({"model": model}, BUCKETS, histogram.up_to(), histogram.total)
            ],
        )
        yield single("anygpu_ready", "gauge", "1 while the server takes requests, 0 while it drains or is late.", ready)
        yield single("anygpu_requests_open", "gauge", "Requests without a response yet.", self.open)
        yield single("anygpu_request_bytes_total", "counter", "Bytes of requests' bodies.", self._bytes_in)
        yield single("anygpu_response_bytes_total", "counter", "Bytes of responses' bodies.", self._bytes_out)
        yield single("anygpu_held_bytes", "gauge", "Bytes of the bodies that are held.", held_bytes)
