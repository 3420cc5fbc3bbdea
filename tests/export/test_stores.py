"""The credentials of a store that an export is given reach the store: the headers of its requests show them."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from file_systems import LOOPBACK
from kafkafmt.export.stores import delta_options, delta_settings, iceberg_settings
from kafkafmt.storage import RemotePath, Storages

URI = "s3://lake/orders"


@pytest.fixture
def store() -> Iterator[tuple[str, list[str | None]]]:
    """Run a store that has nothing. Its URL, and the session token of each request."""
    tokens: list[str | None] = []

    class Empty(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            tokens.append(self.headers["x-amz-security-token"])
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Empty) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{LOOPBACK}:{server.server_port}", tokens
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["delta", "delta, short names", "iceberg"])
def test_credentials_when_they_are_temporary_then_requests_have_their_session_token(
    store: tuple[str, list[str | None]], kind: str
) -> None:
    url, tokens = store
    names = {
        "delta": (
            "AWS_REGION",
            "AWS_ENDPOINT_URL",
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
        ),
        "delta, short names": ("region", "endpoint_url", "access_key_id", "secret_access_key", "token"),
        "iceberg": (
            "s3.region",
            "s3.endpoint",
            "s3.access-key-id",
            "s3.secret-access-key",
            "s3.session-token",
        ),
    }
    given = dict(zip(names[kind], ("us-east-1", url, "key", "a/secret+", "a/token+="), strict=True))
    settings = iceberg_settings(URI, given) if kind == "iceberg" else delta_settings(URI, given)
    folder = Storages(settings).locate(URI)
    assert isinstance(folder, RemotePath)
    assert not folder.exists()
    assert set(tokens) == {"a/token+="}
    assert "token" not in str(folder)
    assert delta_options(folder)["AWS_SESSION_TOKEN"] == "a/token+="


def test_session_token_when_it_is_without_a_key_then_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^option session_token: expected access_key and secret_key with"):
        Storages({"session_token": "hidden"}).locate(URI)


def test_credentials_when_none_are_given_then_those_of_the_environment_are_used(
    store: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, tokens = store
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    folder = Storages({"region": "us-east-1", "endpoint_override": url}).locate(URI)
    assert isinstance(folder, RemotePath)
    assert not folder.exists()
    assert set(tokens) == {"of-the-environment"}
