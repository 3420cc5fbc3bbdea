"""The JSON documents that Avro schemas and JSON Schemas are."""

from __future__ import annotations

import json
from typing import Any

from kafkafmt.decode.payloads import Schema, SchemaError


def document_of(schema: Schema, language: str) -> Any:
    """Return the JSON document of a schema. language: what the schema is, with its article, for errors.

    Raises SchemaError if the text is no JSON, or is nested too deeply, or has surrogates alone, which no column of
    text and no name of a field can have.
    """
    try:
        document = json.loads(schema.content)
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SchemaError(f"expected {language}; found a surrogate alone") from None
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"expected {language}; {' '.join(str(error).split())}") from None
    return document
