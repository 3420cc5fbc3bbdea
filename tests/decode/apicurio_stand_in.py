"""Apicurio's API of versions 2 and 3, as far as its serializers and our client ask: artifacts, and ids of contents.

The schemas are those of the stand-in of Confluent's API. The contentId of a schema is its id there, and its globalId is
1000 more. An artifact is a subject, and all are in the group default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from decode.stand_in import Registry

GLOBAL_ID = 1000
_MISSING = (404, {"error_code": 404, "message": "not found", "name": "ArtifactNotFoundException"})
_TIME = "2024-01-01T00:00:00Z"


def apicurio_answer(
    registry: Registry, method: str, path: str, headers: Mapping[str, str], content: bytes
) -> tuple[int, Any]:
    """Return the status and the answer of a request: text, or an object of JSON."""
    _, _, version, *parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[0] == "ids":
        schema_id = int(parts[2]) - (GLOBAL_ID if parts[1] == "globalIds" else 0)
        known = registry.schemas.get(schema_id)
        if known is None:
            return _MISSING
        return 200, known.get("references", []) if parts[3:] == ["references"] else known["schema"]
    if method == "POST" and parts[2:] == ["artifacts"]:
        return 200, _registered(registry, version, headers, content)
    artifact, *rest = parts[3:]
    ids = registry.subjects.get(artifact, [])
    wanted = rest[1] if rest[:1] == ["versions"] else "branch=latest"
    number = len(ids) if wanted == "branch=latest" else int(wanted)
    if not 0 < number <= len(ids):
        return _MISSING
    if rest[2:] == ["references"]:
        return 200, registry.schemas[ids[number - 1]].get("references", [])
    if rest[:1] == ["versions"] and (rest[2:] == ["content"] or (version == "v2" and not rest[2:])):
        return 200, registry.schemas[ids[number - 1]]["schema"]
    return 200, _metadata(registry, artifact, ids[number - 1], number)


def _registered(registry: Registry, version: str, headers: Mapping[str, str], content: bytes) -> Any:
    """Register the first or the next version of an artifact. Return what is known of it."""
    if version == "v2":
        artifact, kind = headers["X-Registry-ArtifactId"], headers["X-Registry-ArtifactType"]
        given = {"content": content.decode()}
        if "extended" in headers.get("Content-Type", ""):
            given = json.loads(content)
    else:
        body = json.loads(content)
        artifact, kind, given = body["artifactId"], body["artifactType"], body["firstVersion"]["content"]
    schema = {"schema": given["content"], "schemaType": kind, "references": given.get("references")}
    schema_id = registry.register(artifact, schema)
    number = registry.subjects[artifact].index(schema_id) + 1
    found = _metadata(registry, artifact, schema_id, number)
    return found if version == "v2" else {"artifact": found, "version": found}


def _metadata(registry: Registry, artifact: str, schema_id: int, number: int) -> dict[str, Any]:
    kind = registry.schemas[schema_id].get("schemaType", "AVRO")
    names = {"id": artifact, "artifactId": artifact, "groupId": "default", "name": artifact}
    people = {"createdBy": "", "modifiedBy": "", "owner": "", "createdOn": _TIME, "modifiedOn": _TIME}
    ids = {"globalId": GLOBAL_ID + schema_id, "contentId": schema_id, "version": str(number)}
    return {**names, **people, **ids, "type": kind, "artifactType": kind, "state": "ENABLED"}
