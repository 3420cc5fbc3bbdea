"""Schemas of a registry over HTTP: Confluent's API, and Apicurio's of version 2 and 3 for Apicurio's own ids."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

from kafkafmt._util.names import did_you_mean, some_names
from kafkafmt._util.user_errors import ArgumentError, UserError
from kafkafmt.decode.payloads import GIVE_READER, Schema, SchemaError, SchemaKind
from kafkafmt.decode.schemas.source import (
    SchemaId,
    SchemaSourceError,
    UnknownSchemaError,
    ensure_kind,
    protobuf_content,
)
from kafkafmt.types import check_int

_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_FOUND = 404
_MAX_ANSWER_BYTES = 16 << 20
_NO_ENCODING = "identity"
_MAX_REFERENCES = 1000
_MAX_MISSING = 10_000
_MAX_REFERENCE_DEPTH = 20
_USER_INFO = "basic.auth.user.info"
# The options that may be settings of a file, by the names that Confluent's clients have for them.
_SETTINGS = {
    _USER_INFO: "username",
    "bearer.auth.token": "token",
    "ssl.ca.location": "ca_file",
    "ssl.certificate.location": "certificate_file",
    "ssl.key.location": "key_file",
}
# RFC 6750, "Authorization Request Header Field". The error of http.client for another character shows the token.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_APICURIO_IDS = {"globalId": "globalIds", "contentId": "contentIds"}


@dataclass(frozen=True)
class RegistryOptions:
    """How to reach a registry.

    username, password: of basic authentication. token: a bearer token.
    ca_file: a file of certificates to trust, in place of those of the system.
    certificate_file, key_file: the certificate of the client, and its key if it is in another file.
    timeout_seconds: for each connection and each wait for bytes. retries: after errors that may pass, such as status
    429 or 503 and failed connections. backoff_seconds: before the first retry; it doubles with each.
    not_found_seconds: how long an unknown id stays unknown without another request.

    Raises ValueError for a negative number, or a timeout of 0, and TypeError for `retries` that are no integer.
    """

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    timeout_seconds: float = 10.0
    retries: int = 4
    backoff_seconds: float = 0.2
    not_found_seconds: float = 30.0

    def __post_init__(self) -> None:
        check_int("retries", self.retries, 0)
        if not self.timeout_seconds > 0:
            raise ValueError(f"timeout_seconds: expected more than 0; found {self.timeout_seconds}")
        for name in ("backoff_seconds", "not_found_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: expected 0 or more; found {getattr(self, name)}")

    @classmethod
    def of_settings(cls, settings: Mapping[str, str]) -> RegistryOptions:
        """Return the options of settings under the names that Confluent's clients have for them.

        Raises ValueError, without the values, for a setting that is unknown or not valid.
        """
        found: dict[str, str] = {}
        for name, value in settings.items():
            if name not in _SETTINGS:
                # The name is not shown: without the right separator it has a part of the value.
                meant = did_you_mean(name, _SETTINGS) or f": expected one of {some_names(_SETTINGS)}"
                raise ArgumentError(f"unknown registry setting{meant}")
            found[_SETTINGS[name]] = value
        if "username" in found:
            found["username"], colon, found["password"] = found["username"].partition(":")
            if not colon:
                raise ArgumentError(f"{_USER_INFO}: expected USER:PASSWORD; found no ':'")
        return cls(**found)  # type: ignore[arg-type]


class SchemaRegistry:
    """Schemas of a registry, by ids and subjects. Schemas are cached, and an id is asked for once.

    url: of the registry, such as `https://registry:8081` or `http://apicurio:8080/apis/ccompat/v7`. Ids of Apicurio's
    own framing are asked for at `/apis/registry/v3`, or `v2`, of the same host, by `apicurio_path`. An id of 4 bytes in
    a payload is a contentId and one of 8 bytes a globalId, as the serializers write them by default. If they were told
    to write the other one, by `apicurio.registry.use-id`, `apicurio_id` says which.

    Raises ValueError for a URL that is not of HTTP, and for options that contradict it or each other.
    """

    def __init__(
        self,
        url: str,
        options: RegistryOptions | None = None,
        *,
        apicurio_path: str = "/apis/registry/v3",
        apicurio_id: Literal["contentId", "globalId"] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if "@" in f"{parts.path}{parts.query}{parts.fragment}":
            # What precedes it would be the host, which errors show, and may be a user with a password.
            raise ArgumentError(
                "the URL of a schema registry has an @ after its host: percent-encode the user and the password"
            )
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ArgumentError(f"a schema registry has an http or https URL; found {_without_secrets(url)}")
        options = options or RegistryOptions()
        if parts.username is not None:
            if options.username is not None or options.password is not None:
                raise ArgumentError(
                    "the user of a schema registry is in its URL or in its options, not in both"
                )
            options = replace(
                options, username=unquote(parts.username), password=unquote(parts.password or "")
            )
        if options.password is not None and options.username is None:
            raise ArgumentError("the password of a schema registry needs a user name")
        if options.token is not None and options.username is not None:
            raise ArgumentError("a schema registry takes a bearer token or a user name, not both")
        if options.token is not None and _TOKEN.fullmatch(options.token) is None:
            raise ArgumentError(
                "the bearer token of a schema registry has a character that no token can have"
            )
        if options.key_file is not None and options.certificate_file is None:
            raise ArgumentError("the key of a client of a schema registry needs its certificate")
        self.url = _without_secrets(url).rstrip("/")
        self._options = options
        self._apicurio = f"{parts.scheme}://{self.url.split('://', 1)[1].partition('/')[0]}{apicurio_path}"
        self._apicurio_id = apicurio_id
        self._sleep = sleep
        self._lock = threading.RLock()
        self._session: Any = None
        self._schemas: dict[object, Schema] = {}
        self._missing: dict[object, float] = {}

    def __repr__(self) -> str:
        return f"SchemaRegistry({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out connections. Credentials are pickled, since executors need them."""
        state = self.__dict__.copy()
        for name in ("_lock", "_session", "_missing"):
            del state[name]
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._session, self._missing = threading.RLock(), None, {}

    def schema(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        """Return the schema with this id."""
        return self._cached((schema_id, kind), lambda: self._by_id(schema_id, kind), str(schema_id))

    def newest(self, subject: str, kind: SchemaKind) -> Schema | None:
        """Return the newest schema of a subject, which is asked for each time. None if there is no such subject."""
        query = "?format=serialized" if kind == "PROTOBUF" else ""
        answer = self._get(f"{self.url}/subjects/{quote(subject, safe='')}/versions/latest{query}")
        return None if answer is None else self._parsed(answer, kind, f"subject {subject}")

    def newest_after(self, schema_ids: Sequence[SchemaId], kind: SchemaKind) -> Schema:
        """Return the newest schema of the one subject that these schemas belong to."""
        subjects: set[str] | None = None
        for schema_id in schema_ids:
            if schema_id.kind != "id":
                continue
            found = self._get(f"{self.url}/schemas/ids/{schema_id.value}/versions")
            names = {
                str(entry["subject"])
                for entry in (found if isinstance(found, list) else ())
                if isinstance(entry, dict) and "subject" in entry
            }
            subjects = names if subjects is None else subjects & names
            if not subjects:  # payloads that are damaged may have thousands of other ids
                break
        if subjects and len(subjects) == 1:
            newest = self.newest(next(iter(subjects)), kind)
            if newest is not None:
                return newest
        if len(schema_ids) == 1:
            return self.schema(schema_ids[0], kind)
        raise SchemaError(f"{self.url}: the records have schemas of several subjects: {GIVE_READER}")

    def _cached(self, key: object, load: Callable[[], Schema], name: str) -> Schema:
        with self._lock:  # threads that need the same id wait for one request
            found = self._schemas.get(key)
            if found is not None:
                return found
            if self._missing.get(key, 0.0) > time.monotonic():
                raise UnknownSchemaError(f"{name} is unknown to {self.url}")
            try:
                found = self._schemas[key] = load()
            except UnknownSchemaError:
                if len(self._missing) == _MAX_MISSING:
                    self._missing.clear()  # payloads that are damaged may have any id
                self._missing[key] = time.monotonic() + self._options.not_found_seconds
                raise
            return found

    def _by_id(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        query = "?format=serialized" if kind == "PROTOBUF" else ""
        if schema_id.kind == "glue":
            raise UserError(
                "AWS Glue has no registry over plain HTTP: give schemas as a folder or a map of UUIDs to files"
            )
        if schema_id.kind in _APICURIO_IDS:
            return self._apicurio_schema(schema_id, kind)
        part = "ids" if schema_id.kind == "id" else "guids"
        answer = self._get(f"{self.url}/schemas/{part}/{schema_id.value}{query}")
        if answer is None:
            raise UnknownSchemaError(f"{schema_id} is unknown to {self.url}")
        return self._parsed(answer, kind, str(schema_id))

    def _apicurio_schema(self, schema_id: SchemaId, kind: SchemaKind) -> Schema:
        ids = _APICURIO_IDS[self._apicurio_id or schema_id.kind]
        path = f"{self._apicurio}/ids/{ids}/{schema_id.value}"
        text = self._get(path, as_text=True)
        if text is None:
            raise UnknownSchemaError(f"{schema_id} is unknown to {self._apicurio}")
        return Schema(kind, text, self._apicurio_references(path, kind, 0))

    def _apicurio_references(self, path: str, kind: SchemaKind, depth: int) -> tuple[tuple[str, Schema], ...]:
        """Return what a schema refers to. path: of the schema."""
        entries = self._get(f"{path}/references") or []
        if not isinstance(entries, list):
            raise SchemaSourceError(f"{path}/references: expected a list; found {entries!r}"[:300])
        if depth > _MAX_REFERENCE_DEPTH or len(entries) > _MAX_REFERENCES:
            raise SchemaError(f"{path} has references nested too deeply, or more than {_MAX_REFERENCES}")
        references = []
        for entry in entries:
            try:
                place = tuple(str(entry[name] or "default") for name in ("groupId", "artifactId", "version"))
                name = str(entry["name"])
            except (KeyError, TypeError):
                raise SchemaSourceError(
                    f"{path}/references: expected references; found {entry!r}"[:300]
                ) from None
            load = partial(self._apicurio_version, place, kind, depth + 1)
            references.append((name, self._cached((*place, kind), load, f"artifact {place[1]}")))
        return tuple(references)

    def _apicurio_version(self, place: tuple[str, ...], kind: SchemaKind, depth: int) -> Schema:
        group, artifact, version = (quote(part, safe="") for part in place)
        path = f"{self._apicurio}/groups/{group}/artifacts/{artifact}/versions/{version}"
        text = self._get(f"{path}/content" if "/v3" in self._apicurio else path, as_text=True)
        if text is None:
            raise UnknownSchemaError(f"artifact {artifact} version {version} is unknown to {self._apicurio}")
        return Schema(kind, text, self._apicurio_references(path, kind, depth))

    def _parsed(self, answer: Any, kind: SchemaKind, name: str, depth: int = 0) -> Schema:
        if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
            raise SchemaSourceError(
                f"{self.url}: expected {name} as a JSON object with a schema; found another answer"
            )
        ensure_kind(str(answer.get("schemaType") or "AVRO"), kind, name)
        content: str | bytes = answer["schema"]
        if kind == "PROTOBUF":
            content = protobuf_content(answer["schema"])
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise SchemaSourceError(f"{self.url}: {name} has a damaged reference")
        if depth > _MAX_REFERENCE_DEPTH or len(references) > _MAX_REFERENCES:
            raise SchemaError(f"{name} has references nested too deeply, or more than {_MAX_REFERENCES}")
        found = []
        for reference in references:
            try:
                subject, version = str(reference["subject"]), int(reference["version"])
                found.append((str(reference["name"]), self._version(subject, version, kind, depth + 1)))
            except (KeyError, TypeError, ValueError) as error:
                if isinstance(error, UserError):
                    raise
                raise SchemaSourceError(f"{self.url}: {name} has a damaged reference") from None
        return Schema(kind, content, tuple(found))

    def _version(self, subject: str, version: int, kind: SchemaKind, depth: int) -> Schema:
        query = "&format=serialized" if kind == "PROTOBUF" else ""
        name = f"version {version} of subject {subject}"

        def load() -> Schema:
            # A schema may refer to a version that has been deleted since.
            path = f"{self.url}/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true{query}"
            answer = self._get(path)
            if answer is None:
                raise UnknownSchemaError(f"{name} is unknown to {self.url}")
            return self._parsed(answer, kind, name, depth)

        return self._cached((subject, version, kind), load, name)

    def _get(self, url: str, *, as_text: bool = False) -> Any:
        """Return the answer to a request, or None for status 404. Retries errors that may pass."""
        problem = ""
        for attempt in range(self._options.retries + 1):
            if attempt:
                self._sleep(self._options.backoff_seconds * 2 ** (attempt - 1))
            answer = self._request(url)
            if isinstance(answer, str):
                problem = answer
                continue
            status, body = answer
            if status == _NOT_FOUND:
                return None
            if status not in _TRANSIENT:
                return self._body(url, status, body, as_text)
            problem = f"status {status}"
        raise SchemaSourceError(f"{url} does not answer: {problem}, {self._options.retries + 1} times")

    def _request(self, url: str) -> tuple[int, bytes] | str:
        """Return status and body of one request, or what made it fail."""
        requests = _requests()
        try:
            with self._connected().get(
                url,
                timeout=self._options.timeout_seconds,
                stream=True,
                allow_redirects=False,
                # Of a request, since REQUESTS_CA_BUNDLE of the environment replaces that of a session.
                verify=self._options.ca_file or True,
            ) as response:
                encoding = response.headers.get("Content-Encoding", _NO_ENCODING)
                if encoding != _NO_ENCODING:  # it may decompress to any size
                    raise SchemaSourceError(f"{url}: expected no Content-Encoding; found {encoding!r}"[:300])
                body = response.raw.read(_MAX_ANSWER_BYTES + 1, decode_content=False)
                if len(body) > _MAX_ANSWER_BYTES:
                    raise SchemaSourceError(f"{url} answers with more than {_MAX_ANSWER_BYTES} bytes")
                if response.raw.length_remaining:  # urllib3 raises only if no byte came
                    return f"the answer ends {response.raw.length_remaining} bytes before its end"
                return response.status_code, body
        except (requests.exceptions.SSLError, requests.exceptions.InvalidURL) as error:
            raise SchemaSourceError(f"{url}: {_cause(error)}") from None
        except (requests.exceptions.RequestException, OSError) as error:
            if isinstance(error, UserError):
                raise
            return _cause(error)
        except Exception as error:  # urllib3's own, while the body is read
            if type(error).__module__.startswith("urllib3"):
                return _cause(error)
            raise

    def _body(self, url: str, status: int, body: bytes, as_text: bool) -> Any:
        import json

        if status in {401, 403}:
            raise SchemaSourceError(f"{url} refuses the credentials: status {status}")
        if status != 200:
            raise SchemaSourceError(f"{url}: expected status 200; found {status}")
        try:
            text = body.decode()
            return text if as_text else json.loads(text)
        except (ValueError, RecursionError):
            raise SchemaSourceError(f"{url}: expected JSON; found {body[:40]!r}") from None

    def _connected(self) -> Any:
        with self._lock:
            if self._session is None:
                options = self._options
                session = _requests().Session()
                session.headers["Accept"] = (
                    "application/vnd.schemaregistry.v1+json, application/json;q=0.9, */*;q=0.1"
                )
                session.headers["Accept-Encoding"] = _NO_ENCODING
                if options.username is not None:
                    session.auth = (options.username.encode(), (options.password or "").encode())
                if options.token is not None:
                    session.auth = _Bearer(options.token)
                if options.certificate_file is not None:
                    files = (options.certificate_file, options.key_file or options.certificate_file)
                    session.cert = files
                self._session = session
            return self._session


class _Bearer:
    """Sends a bearer token. As `auth` of a session it wins over a .netrc file."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: Any) -> Any:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _requests() -> Any:
    try:
        import requests
    except ImportError:
        raise UserError("a schema registry needs requests: pip install 'kafkafmt[decode]'") from None
    return requests


def _cause(error: BaseException) -> str:
    """Return the innermost reason of an error in one line. URLs of requests have no credentials."""
    inner: Any = error
    while True:
        reason = getattr(inner, "reason", None) or next(
            (argument for argument in getattr(inner, "args", ()) if isinstance(argument, BaseException)), None
        )
        if not isinstance(reason, BaseException):
            break
        inner = reason
    text = " ".join(str(inner).split())
    return f"{type(inner).__name__}: {text}"[:300]


def _without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
