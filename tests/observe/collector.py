"""A small collector of OpenTelemetry's protocol over HTTP, for tests."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected:
    """What has been sent so far."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.spans: list[Any] = []
        #: Points by the name of their metric.
        self.points: dict[str, list[Any]] = {}
        self.units: dict[str, str] = {}


@contextmanager
def collector() -> Iterator[Collected]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        collected.spans += [(scope.scope.name, span) for span in scope.spans]
            else:
                for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for group in measured.scope_metrics:
                        for metric in group.metrics:
                            data = getattr(metric, metric.WhichOneof("data"))
                            collected.points[metric.name] = list(data.data_points)
                            collected.units[metric.name] = metric.unit
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collected = Collected(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield collected
        finally:
            server.shutdown()
            thread.join()
