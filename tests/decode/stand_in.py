"""A schema registry over real HTTP on loopback, which speaks as much of Confluent's API as clients need here.

It is one of Apicurio, too: `apicurio_stand_in` answers for /apis/registry. /apis/ccompat/v7 is Confluent's API.
"""

from __future__ import annotations

import gzip
import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from decode.apicurio_stand_in import apicurio_answer

CONFLUENT_PATH = "/apis/ccompat/v7"


@dataclass
class Registry:
    """The schemas of a stand-in, and what it is to do with requests.

    failures: what the next requests are answered with: a status, or bytes in place of JSON. authorization: the header
    that requests need. compresses: whether gzip is used. requests: the paths of all that came. breaks: how many of the
    next answers end in the middle, with their connections.
    """

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    failures: list[int | bytes] = field(default_factory=list)
    authorization: str | None = None
    compresses: Literal["never", "asked", "always"] = "never"
    requests: list[str] = field(default_factory=list)
    breaks: int = 0
    gate: threading.Event | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Add a schema to a subject. Return its id."""
        with self.lock:
            wanted = {key: schema[key] for key in ("schema", "schemaType", "references") if schema.get(key)}
            found = [number for number, known in self.schemas.items() if known["asked"] == wanted]
            schema_id = found[0] if found else len(self.schemas) + 1
            if not found:
                self.schemas[schema_id] = {**wanted, "asked": wanted, "guid": str(uuid.UUID(int=schema_id))}
            versions = self.subjects.setdefault(subject, [])
            if schema_id not in versions:
                versions.append(schema_id)
            return schema_id

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Return the status and the answer of a request."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            schema_id = int(parts[2])
            if schema_id not in self.schemas:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            if parts[3:] == ["versions"]:
                found = [
                    {"subject": subject, "version": ids.index(schema_id) + 1}
                    for subject, ids in self.subjects.items()
                    if schema_id in ids
                ]
                return 200, found
            return 200, self.shown(schema_id)
        if parts[:2] == ["schemas", "guids"]:
            for schema_id, known in self.schemas.items():
                if known["guid"] == parts[2]:
                    return 200, self.shown(schema_id)
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if parts[0] == "subjects" and method == "POST":
            schema_id = self.register(parts[1], body)
            version = self.subjects[parts[1]].index(schema_id) + 1
            return 200, {"subject": parts[1], "version": version, **self.shown(schema_id)}
        if parts[0] == "subjects" and parts[1] in self.subjects:
            ids = self.subjects[parts[1]]
            version = len(ids) if parts[3] == "latest" else int(parts[3])
            if version <= len(ids):
                named = {"subject": parts[1], "version": version}
                return 200, {**named, **self.shown(ids[version - 1])}
        return 404, {"error_code": 40401, "message": "Subject not found"}

    def shown(self, schema_id: int) -> dict[str, Any]:
        """Return a schema in the form in which it was registered, as registries do that do not know other formats."""
        known = self.schemas[schema_id]
        return {"id": schema_id, "guid": known["guid"], **known["asked"]}


@contextmanager
def running_registry(tls: ssl.SSLContext | None = None) -> Iterator[Registry]:
    """Run a registry on a free port of loopback."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None:
            """Keep the output of tests clean."""

        def serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length)
            registry.requests.append(self.path)
            if registry.gate is not None:
                registry.gate.wait(30)
            if registry.failures:
                failure = registry.failures.pop(0)
                self.send(200, failure) if isinstance(failure, bytes) else self.send(failure, b"{}")
                return
            if registry.authorization not in {None, self.headers.get("Authorization")}:
                self.send(401, b'{"error_code": 401}')
                return
            url = urlsplit(self.path)
            path = url.path.removeprefix(CONFLUENT_PATH)
            if path.startswith("/apis/registry/"):
                status, answer = apicurio_answer(registry, self.command, path, self.headers, content)
            else:
                body = json.loads(content) if content else None
                status, answer = registry.answer(self.command, path, body)
            self.send(status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode())

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            is_asked = "gzip" in (self.headers.get("Accept-Encoding") or "")
            if registry.compresses == "always" or (registry.compresses == "asked" and is_asked):
                self.send_header("Content-Encoding", "gzip")
                body = gzip.compress(body)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if registry.breaks:
                registry.breaks -= 1
                self.close_connection = True
                body = body[: len(body) // 2]
            self.wfile.write(body)

        do_GET = do_POST = serve  # noqa: N815

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        registry.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
