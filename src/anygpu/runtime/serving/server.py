"""`Server`: models over HTTP, in a thread beside the caller's or until a signal comes."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from anygpu.errors import InvalidOption, MissingExtra
from anygpu.runtime.runtime import Runtime
from anygpu.runtime.serving.application import Application, ServingRuntime
from anygpu.runtime.serving.limits import LOOPBACK_NAMES, Limits, TokenMapping, limits_of, tokens_of
from anygpu.runtime.serving.models import Model, models_of

if TYPE_CHECKING:
    from anygpu.runtime.serving.http import HttpServer

#: A server's own runtime: tasks that may wait, seconds for one, and predicted seconds of a launch.
QUEUE, DEADLINE, LATENCY = 1000, 60.0, 0.05
MAX_BODY = "64MB"
#: Seconds from not being ready to taking no connections, and for requests that are open then.
NOTICE, PATIENCE = 1.0, 30.0


class Server:
    """Models over HTTP, as the Open Inference Protocol has it. `with Server({"score": score}) as server:` serves.

    `models` has a function, a `Program`, or the path of a saved program under each name. With `runtime` all of them
    use that one, which stays the caller's; otherwise the server has its own, with a `queue`, a `deadline` in seconds
    and a `latency` that bounds its batches. `tokens` maps bearer tokens to tenants, or is the path of a file with
    lines "tenant token". `examples` has arguments for models by name: they are called before the server is ready.
    `limits` replaces `max_body`, and has the deadlines of connections too.
    """

    def __init__(
        self,
        models: Mapping[str, Any],
        *,
        port: int = 8000,
        host: str = "127.0.0.1",
        runtime: ServingRuntime | None = None,
        tokens: TokenMapping | str | os.PathLike[str] | None = None,
        latency: float | None = None,
        queue: int | None = None,
        deadline: float | None = None,
        examples: Mapping[str, Sequence[Any]] | None = None,
        max_body: int | str = MAX_BODY,
        limits: Limits | None = None,
        notice: float = NOTICE,
        patience: float = PATIENCE,
        insecure: bool = False,
    ) -> None:
        if runtime is not None and not (latency is None and queue is None and deadline is None):
            raise InvalidOption("latency, queue and deadline are those of the given runtime: pass them to it instead.")
        if latency is not None and not latency > 0:
            raise InvalidOption(f"latency is a number of seconds, more than 0; got {latency!r}.")
        if not (notice >= 0 and patience >= 0):
            raise InvalidOption(f"notice and patience are seconds, at least 0; got {notice!r} and {patience!r}.")
        known = tokens_of(tokens)
        if known is None and not insecure and not _is_local(host):
            raise InvalidOption(
                f"without tokens, every client that reaches {host} could use the models. Pass tokens=, or "
                "insecure=True if a proxy in front of it authenticates callers."
            )
        # Pages of any site could ask through the browser of this machine's user: they are refused where no token and
        # no proxy keeps them out.
        self._refuses_pages = known is None and not insecure
        limits = limits_of(max_body) if limits is None else limits
        self._models = models_of(models)
        _check_examples(examples or {}, self._models)
        self._examples = dict(examples or {})
        # The extra is missed here and not when the first caller comes.
        self._make_server = _server_class()
        self._own: Runtime | None = None
        if runtime is None:
            deadline = DEADLINE if deadline is None else deadline
            latency = LATENCY if latency is None else latency
            runtime = self._own = Runtime(
                queue=QUEUE if queue is None else queue, deadline=deadline, max_latency=latency
            )
        self._runtime: ServingRuntime = runtime
        self._application = Application(self._models, runtime, tokens=known, limits=limits, deadline=deadline)
        self._limits = limits
        self._host = host
        self._port = port
        self._notice = notice
        self._patience = patience
        self._server: HttpServer | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    # -- life

    def start(self) -> Self:
        """Serve in a thread, and return when requests are answered."""
        server = self._prepare()
        self._thread = threading.Thread(target=self._serve, args=(server,), name="anygpu-server", daemon=True)
        self._thread.start()
        while not server.has_started.wait(0.05):
            if not self._thread.is_alive():
                self._close_runtime()
                raise RuntimeError("the server did not start") from self._failure
        return self

    def run(self, started: Callable[[], None] | None = None) -> None:
        """Serve in this thread until SIGTERM or SIGINT, or until another thread calls `stop`; then finish in order.

        `started` is called when requests are answered.
        """
        server = self._prepare()
        server.on_start = started
        try:
            server.serve_until_drained()
        finally:
            self._close_runtime()

    def stop(self) -> None:
        """Be not ready, finish the requests that are open, and end. Waits for that.

        Called again meanwhile, it ends at once: what is open then gets no answer.
        """
        if self._server is not None and not self._server.has_ended:
            self._server.drain()
        if self._thread is not None:
            self._thread.join()
            self._close_runtime()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    # -- what it is

    @property
    def port(self) -> int:
        """The port; a free one was chosen for 0."""
        return self._port

    @property
    def url(self) -> str:
        return f"http://[{self._host}]:{self._port}" if ":" in self._host else f"http://{self._host}:{self._port}"

    @property
    def finished(self) -> bool:
        """Whether it has ended, and no request was left without an answer."""
        return self._server is not None and self._server.has_ended and not self._application.unanswered

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    @property
    def application(self) -> Application:
        """The ASGI application, to be mounted in another server."""
        return self._application

    def __repr__(self) -> str:
        return f"<Server of {', '.join(self._models)} at {self.url}>"

    # -- inside

    def _prepare(self) -> HttpServer:
        """Listen on the port, call the models with their examples, and make the HTTP server."""
        if self._server is not None:
            raise RuntimeError("a server serves once; create another Server.")
        listener = _listener(self._host, self._port)
        try:
            self._try_examples()
        except BaseException:
            listener.close()
            self._close_runtime()
            raise
        self._port = listener.getsockname()[1]
        if self._refuses_pages:
            host = f"[{self._host}]" if ":" in self._host else self._host
            self._application.hosts = tuple(dict.fromkeys((*LOOPBACK_NAMES, host)))
        self._server = self._make_server(
            self._application, listener, notice=self._notice, patience=self._patience, limits=self._limits
        )
        return self._server

    def _serve(self, server: HttpServer) -> None:
        """The thread's work; an error is kept for `start`, which waits."""
        try:
            server.serve_until_drained()
        except BaseException as error:  # noqa: BLE001 - it is raised where `start` waits
            self._failure = error

    def _try_examples(self) -> None:
        """Calls each model that has an example, so that the first caller waits for no compilation."""
        for name, arguments in self._examples.items():
            model = self._models[name]
            given = [np.asarray(each) for each in arguments]
            value = self._runtime.submit(model.function, *given).result()
            model.learn(dict(zip(model.input_names, given, strict=False)), model.outputs(value))

    def _close_runtime(self) -> None:
        """Closes the server's own runtime: after its tasks, or at once if the server was told twice to end."""
        if self._own is None:
            return
        if self._server is not None and self._server.force_exit:
            self._own.close(0.0)
        else:
            self._own.drain(self._patience)
            self._own.close()


def _server_class() -> type[HttpServer]:
    """The class `HttpServer`. Raises `MissingExtra` if uvicorn or httptools is not installed."""
    try:
        from anygpu.runtime.serving.http import HttpServer
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in ("uvicorn", "httptools"):
            raise MissingExtra(error.name, "serve") from None
        raise
    return HttpServer


def _listener(host: str, port: int) -> socket.socket:
    """A listening socket that does not block. Raises `InvalidOption` if the port cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise InvalidOption(
            f"cannot listen on port {port} of {host}: {error}. Pass another port=, or port=0 for any that is free."
        ) from None
    listener.setblocking(False)
    return listener


def _is_local(host: str) -> bool:
    """Whether a host is the loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_examples(examples: Mapping[str, Sequence[Any]], models: Mapping[str, Model]) -> None:
    """Raises `InvalidOption` for examples of models that do not exist, and for arguments in no tuple."""
    for name, arguments in examples.items():
        if name not in models:
            raise InvalidOption(f"examples= has {name!r}, and there is no such model; available: {', '.join(models)}.")
        if not isinstance(arguments, tuple | list):
            raise InvalidOption(f"examples= has a tuple of arguments for each model; got {arguments!r} for {name!r}.")
