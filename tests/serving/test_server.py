"""The server over real sockets, with the public client and with raw requests."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
import prometheus_client.parser
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

import anygpu as ag
from anygpu.errors import InvalidOption
from anygpu.runtime.serving.limits import MAX_HEADERS
from anygpu.runtime.serving.server import Server
from benchmarks.serving_client import Connection, Reply, http_request, infer_request, output_of
from tests.serving.conftest import Serve, X, double


def get(server: Server, path: str) -> Reply:
    with Connection(server.port) as connection:
        return connection.ask(http_request(path, method="GET"))


def message_of(reply: Reply) -> str:
    message: str = json.loads(reply.body)["error"]
    assert len(message) < 500
    return message


class Gate:
    """A function that waits, so that a test decides when it ends."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def function(self) -> Any:
        def wait(x: Any) -> Any:
            self.entered.release()
            self.opened.wait(120)
            return x * 2

        return wait


# -- the public client


def test_triton_sees_the_server_and_its_models(server: Server) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("double")
    assert client.is_model_ready("double", "1")
    assert not client.is_model_ready("no-such-model")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("typed")
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    client.close()


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_triton_infers(server: Server, binary_in: bool, binary_out: bool) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    inputs = []
    for name, array in (("x", X), ("w", X.T.copy())):
        inputs.append(triton.InferInput(name, list(array.shape), "FP32"))
        inputs[-1].set_data_from_numpy(array, binary_data=binary_in)
    outputs = [triton.InferRequestedOutput("output", binary_data=binary_out)]
    found = client.infer("affine", inputs, outputs=outputs, request_id="17")
    np.testing.assert_array_equal(found.as_numpy("output"), X @ X.T + 1)
    assert found.get_response()["id"] == "17"
    client.close()


@pytest.mark.parametrize(
    ("dtype", "name"), [("float16", "FP16"), ("int64", "INT64"), ("uint8", "UINT8"), ("bool", "BOOL")]
)
def test_triton_gets_every_output_of_any_type(server: Server, dtype: str, name: str) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    values = (X % 2).astype(dtype)
    given = triton.InferInput("x", [2, 3], name)
    given.set_data_from_numpy(values)
    found = client.infer("parts", [given])
    np.testing.assert_array_equal(found.as_numpy("low"), values.min(axis=0))
    np.testing.assert_array_equal(found.as_numpy("high"), values.max(axis=0))
    client.close()


def test_triton_gets_our_messages(server: Server) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    given = triton.InferInput("y", [1], "FP32")
    given.set_data_from_numpy(np.ones(1, np.float32))
    with pytest.raises(InferenceServerException, match="has no input 'y'; it has x"):
        client.infer("double", [given])
    with pytest.raises(InferenceServerException, match="there is no model 'none'"):
        client.infer("none", [given])
    client.close()


# -- refusals


@pytest.mark.parametrize(
    ("request_", "status", "says"),
    [
        (http_request("/v2/models/double/infer", b"{"), 400, "not valid"),
        (infer_request("double", {"z": X}), 400, "no input 'z'"),
        (infer_request("affine", {"x": X, "w": X}), 400, "does not take these inputs: matmul"),
        (infer_request("typed", {"x": X.T}), 400, "has the shape [-1, 3]"),
        (infer_request("double", {"x": X}, {"x-request-timeout": "soon"}), 400, "X-Request-Timeout"),
        (infer_request("double", {"x": X}, {"content-encoding": "gzip"}), 415, "compressed"),
        (infer_request("none", {"x": X}), 404, "no model 'none'"),
        (http_request("/v2/models/double/versions/2/infer"), 404, "version 1"),
        (http_request("/v2/models/double/infer", method="GET"), 405, "only POST"),
        (http_request("/v2/models/double/other", method="GET"), 404, "/ready and /infer"),
        (http_request("/nowhere", method="GET"), 404, "nothing here"),
        (http_request("/v2/health/other", method="GET"), 404, "/v2/health/live"),
    ],
)
def test_refused(connection: Connection, request_: bytes, status: int, says: str) -> None:
    reply = connection.ask(request_)
    assert reply.status == status
    assert says in message_of(reply)
    # The connection is as good as before.
    again = connection.ask(infer_request("double", {"x": X}))
    np.testing.assert_array_equal(output_of(again), X * 2)


def test_a_body_that_is_too_large_is_refused_before_it_comes(serve: Serve) -> None:
    server = serve({"double": double}, max_body=10_000)
    with Connection(server.port) as connection:
        # Nothing of the body is ever sent.
        connection.socket.sendall(http_request("/v2/models/double/infer", headers={"content-length": str(10**12)}))
        assert connection.reply().status == 413
    with Connection(server.port) as connection:
        request = http_request("/v2/models/double/infer", headers={"transfer-encoding": "chunked"})
        connection.socket.sendall(request.replace(b"content-length: 0\r\n", b""))
        connection.socket.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
        assert connection.reply().status == 413
    assert b"anygpu_held_bytes 0.0" in get(server, "/metrics").body


def test_too_many_headers_are_refused(connection: Connection) -> None:
    many = {f"x-{number}": "1" for number in range(MAX_HEADERS)}
    assert connection.ask(http_request("/v2", method="GET", headers=many)).status == 431


# -- models' own failures


def broken(x: Any) -> Any:
    raise KeyError("a secret of this machine")


def test_a_model_that_fails_says_so_and_tells_nothing(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve({"broken": broken, "complex": lambda x: x * 1j})
    with Connection(server.port) as connection:
        reply = connection.ask(infer_request("broken", {"x": X}))
        assert reply.status == 500
        assert message_of(reply) == "broken failed with KeyError. The server's log has the details."
        reply = connection.ask(infer_request("complex", {"x": X}))
        assert reply.status == 500
        assert "no type for" in message_of(reply)
    assert "a secret of this machine" in caplog.text


def test_deadlines(serve: Serve) -> None:
    gate = Gate()
    server = serve({"wait": gate.function()})
    with Connection(server.port) as connection:
        reply = connection.ask(infer_request("wait", {"x": X}, {"x-request-timeout": "0.05"}))
        assert reply.status == 504
        assert "0.05 s" in message_of(reply)
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    given = triton.InferInput("x", [2, 3], "FP32")
    given.set_data_from_numpy(X)
    with pytest.raises(InferenceServerException, match=r"did not finish within 0\.06 s"):
        client.infer("wait", [given], timeout=60_000)
    client.close()
    gate.opened.set()


def test_a_full_queue(serve: Serve) -> None:
    gate = Gate()
    server = serve({"wait": gate.function()}, queue=2)
    with ThreadPoolExecutor(32) as pool:

        def ask(_: int) -> Reply:
            with Connection(server.port) as connection:
                return connection.ask(infer_request("wait", {"x": X}))

        replies = [pool.submit(ask, number) for number in range(24)]
        # Two wait, and NumPy has four threads at most: the others have their answers while nothing goes on.
        answered = as_completed(replies, timeout=120)
        for _ in range(24 - 2 - 4):
            next(answered)
        gate.opened.set()
        found = [each.result() for each in replies]
    refused = [each for each in found if each.status == 429]
    assert len(refused) >= 24 - 2 - 4
    assert all(1 <= int(each.headers["retry-after"]) <= 60 for each in refused)
    assert all(each.status == 200 for each in found if each not in refused)


def test_a_caller_that_leaves_takes_its_task_along(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    function = gate.function()
    with ag.Runtime() as runtime:
        server = serve({"wait": function}, runtime=runtime)
        lanes = [runtime.submit(function, X) for _ in range(4)]  # as many as NumPy has threads at most
        gate.entered.acquire()
        submitted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        submit = runtime.submit

        def told(*given: Any, **options: Any) -> Any:
            submitted.put(future := submit(*given, **options))
            return future

        monkeypatch.setattr(runtime, "submit", told)
        connection = Connection(server.port)
        connection.socket.sendall(infer_request("wait", {"x": X}))
        future = submitted.get(timeout=120)
        connection.close()
        with pytest.raises(CancelledError):
            future.result(120)
        gate.opened.set()
        assert all(each.result().shape == X.shape for each in lanes)
        assert b'status="499"} 1' in get(server, "/metrics").body


# -- tokens

TOKENS = {"web-0123456789abcdef": "web", "nightly-0123456789": ("nightly", ["parts"])}


def test_tokens(serve: Serve) -> None:
    server = serve({"double": double}, tokens=TOKENS)
    assert get(server, "/v2/health/ready").status == 200, "probes have no token"
    web, nightly = ({"authorization": f"Bearer {token}"} for token in TOKENS)
    with Connection(server.port) as connection:
        for path in ("/v2", "/v2/models", "/v2/models/double", "/metrics", "/v2/models/double/ready"):
            assert connection.ask(http_request(path, method="GET")).status == 401
            assert connection.ask(http_request(path, method="GET", headers=web)).status == 200
        refused = connection.ask(infer_request("double", {"x": X}))
        assert refused.status == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert connection.ask(infer_request("double", {"x": X}, {"authorization": "Bearer wrong"})).status == 401
        assert connection.ask(infer_request("double", {"x": X}, nightly)).status == 403
        assert connection.ask(infer_request("double", {"x": X}, web)).status == 200
        metrics = connection.ask(http_request("/metrics", method="GET", headers=web)).body.decode()
        assert 'anygpu_requests_total{model="double",tenant="web",status="200"} 1' in metrics
        assert 'anygpu_tenant_seconds_total{tenant="web"}' in metrics
        listed = connection.ask(http_request("/v2/models", method="GET", headers=nightly))
        assert json.loads(listed.body) == {"models": []}


@pytest.mark.parametrize("path", ["/v2/models/double/infer", "/v2/models", "/metrics"])
@pytest.mark.parametrize("second", ["web-0123456789abcdef", "nightly-0123456789", "unknown"])
def test_a_request_has_one_authorization(serve: Serve, path: str, second: str) -> None:
    server = serve({"double": double}, tokens=TOKENS)
    method = "POST" if path.endswith("infer") else "GET"
    for tokens in (["web-0123456789abcdef", second], [second, "web-0123456789abcdef"]):
        names = ("authorization", "Authorization")
        headers = {name: f"Bearer {token}" for name, token in zip(names, tokens, strict=True)}
        with Connection(server.port) as connection:
            reply = connection.ask(http_request(path, method=method, headers=headers))
        assert reply.status == 400
        assert reply.headers["www-authenticate"] == 'Bearer error="invalid_request"'
        assert json.loads(reply.body) == {"error": "the header Authorization was sent twice. Send it once."}


@pytest.mark.parametrize("name", ["x-request-timeout", "inference-header-content-length"])
def test_headers_of_which_one_counts_come_once(server: Server, name: str) -> None:
    with Connection(server.port) as connection:
        reply = connection.ask(infer_request("double", {"x": X}, {name: "10", name.upper(): "10"}))
    assert reply.status == 400
    assert "was sent twice" in json.loads(reply.body)["error"]


def test_each_token_is_a_tenant_with_its_quota(serve: Serve) -> None:
    with ag.Runtime(tenants=[ag.types.Tenant(name="web", bytes=10)]) as runtime:
        server = serve({"double": double}, tokens=TOKENS, runtime=runtime)
        with Connection(server.port) as connection:
            reply = connection.ask(infer_request("double", {"x": X}, {"authorization": "Bearer web-0123456789abcdef"}))
            assert reply.status == 429


def test_without_tokens_only_this_machine_may_ask() -> None:
    with pytest.raises(InvalidOption, match="Pass tokens="):
        Server({"double": double}, host="0.0.0.0", port=0)
    Server({"double": double}, host="0.0.0.0", port=0, insecure=True)


# -- the rest


def test_metrics_are_prometheus_text(serve: Serve) -> None:
    server = serve({"double": double})
    with Connection(server.port) as connection:
        for _ in range(5):
            assert connection.ask(infer_request("double", {"x": X})).status == 200
        assert connection.ask(infer_request("double", {"y": X})).status == 400
    reply = get(server, "/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {
        each.name: {(sample.name, *sample.labels.values()): sample.value for sample in each.samples}
        for each in prometheus_client.parser.text_string_to_metric_families(reply.body.decode())
    }
    requests = families["anygpu_requests"]
    assert requests["anygpu_requests_total", "double", "default", "200"] == 5
    assert requests["anygpu_requests_total", "double", "default", "400"] == 1
    seconds = families["anygpu_request_seconds"]
    assert seconds["anygpu_request_seconds_count", "double"] == 5
    assert seconds["anygpu_request_seconds_bucket", "double", "+Inf"] == 5
    assert families["anygpu_queue_limit"]["anygpu_queue_limit",] == 1000
    assert families["anygpu_device_tasks"]["anygpu_device_tasks_total", "numpy", "done"] == 5
    assert families["anygpu_ready"]["anygpu_ready",] == 1


def test_waiting_requests_become_batches(serve: Serve) -> None:
    """Through the runtime, on a device where launches pay; values are each caller's own."""

    @ag.offload(on="opencl", fallback="raise", check="off")
    def heavy(x: Any) -> Any:
        for _ in range(20):
            x = np.tanh(x) + x
        return x

    server = serve({"heavy": heavy}, latency=0.5, examples={"heavy": (X,)})

    def ask(number: int) -> bool:
        with Connection(server.port) as connection:
            for round_ in range(10):
                given = X + number + round_ / 16
                expected = given
                for _ in range(20):
                    expected = np.tanh(expected) + expected
                reply = connection.ask(infer_request("heavy", {"x": given}))
                np.testing.assert_allclose(output_of(reply), expected, rtol=1e-4)
        return True

    with ThreadPoolExecutor(24) as pool:
        assert all(pool.map(ask, range(24)))
    text = get(server, "/metrics").body.decode()
    [batched] = [line for line in text.splitlines() if line.startswith('anygpu_batched_tasks_total{device="opencl:0"}')]
    assert float(batched.split()[-1]) > 0, text


def test_a_program_is_served(serve: Serve) -> None:
    server = serve({"sums": ag.record(lambda x: x.sum(axis=1), X)})
    with Connection(server.port) as connection:
        reply = connection.ask(infer_request("sums", {"input_0": X}))
        np.testing.assert_array_equal(output_of(reply), X.sum(axis=1))
        assert connection.ask(infer_request("sums", {"input_0": X.T})).status == 400


def test_examples_are_called_before_the_server_is_ready(serve: Serve) -> None:
    server = serve({"double": double}, examples={"double": (X,)})
    metadata = json.loads(get(server, "/v2/models/double").body)
    assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [2, 3]}]
    assert metadata["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [2, 3]}]


def test_a_large_request_is_parsed_beside_the_others(connection: Connection) -> None:
    large = np.ones(1 << 20, np.float32)
    np.testing.assert_array_equal(output_of(connection.ask(infer_request("double", {"x": large}))), 2 * large)


def test_options_that_do_not_fit(serve: Serve) -> None:
    with ag.Runtime() as runtime, pytest.raises(InvalidOption, match="pass them to it instead"):
        Server({"double": double}, runtime=runtime, latency=0.1)
    with pytest.raises(InvalidOption, match="no such model"):
        Server({"double": double}, examples={"other": (X,)})
    with pytest.raises(InvalidOption, match="max_body"):
        Server({"double": double}, max_body="large")
    server = serve({"double": double})
    with pytest.raises(InvalidOption, match="port=0"):
        Server({"double": double}, port=server.port).start()


def test_a_runtime_of_the_callers_stays_open(serve: Serve) -> None:
    with ag.Runtime() as runtime:
        server = serve({"double": double}, runtime=runtime)
        with Connection(server.port) as connection:
            assert connection.ask(infer_request("double", {"x": X})).status == 200
        server.stop()
        assert server.finished
        assert runtime.run(double, X).value.shape == X.shape


def test_without_the_extra_the_command_is_named() -> None:
    script = """
import sys
sys.modules["uvicorn"] = None
import anygpu as ag
try:
    ag.serve({"double": lambda x: x})
except ag.MissingExtra as error:
    assert str(error).endswith("pip install uvicorn httptools"), error
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
