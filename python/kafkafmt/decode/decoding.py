"""Decode keys and values of records to Arrow columns, as users say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.decode.options import DecodingOptions, Sample

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.decode.batch_decoder import BatchDecoder


@dataclass(frozen=True)
class Decoding(DecodingOptions):
    """How keys and values are decoded to Arrow columns. It can be pickled.

    key, value: the format of keys and of values. Those without a format stay bytes. avro, protobuf and json have
        schemas; json also works without. text is UTF-8. The others are what Kafka's serializers of these names write.
    schemas: the URL of a schema registry, a folder or a file of schemas, a map of ids to files, a `Schema` of all
        payloads, a scan of the topic `_schemas`, or any `SchemaSource`, such as a `SchemaRegistry` with credentials.
    framing: where payloads have the ids of their schemas, for both or a mapping with "key" and "value". By default
        "confluent" if the ids select from `schemas`, and "none" otherwise. "auto" is for JSON only: "confluent" for
        payloads that start with byte 0 or 1, which JSON never does, and "none" for others.
    reader_schema: the schema whose type the column gets, for values, or for keys if only keys are decoded; or a mapping
        with "key" and "value". The text of an Avro or JSON schema, a FileDescriptorSet, a `Schema`, or an Arrow type.
        By default the newest schema of the subject `TOPIC-key` or `TOPIC-value`, or else of the schemas of some
        records, such as the first and the last ones of partitions: the newest one that has all fields of the schema of
        most of them. JSON without schemas gets a type with the fields of the first 10,000 records, or of fewer ones
        with 32 MiB.
    on_error: "column" makes a payload that cannot be decoded null, and says why in a column `key_error` or
        `value_error`. "raise" raises DecodingError.
    """

    def decoder(
        self,
        columns: Sequence[str],
        *,
        topics: Sequence[str] = (),
        sample: Sample | None = None,
        id_samples: Sequence[Sample] = (),
        known: pa.Schema | None = None,
        keeps_types: bool = False,
    ) -> BatchDecoder:
        """Return a decoder of batches.

        columns: the columns of the result, in order, before those with errors. topics: of the records, to find the
        newest schemas. sample: returns batches of the first records with the columns that it is given; it is called
        only if neither `reader_schema` nor the topics have the type. id_samples: like it, to find the newest schema by
        the ids of records; by default `sample` alone. The first one that has the id of a known schema counts, and of
        the others only the first batch that has one. known: columns of earlier records. A type that is inferred has
        their fields, with the same types, and then those that are new, unless a name differs from another one in case
        only. Columns without fields are ignored. If no record has the id of a schema, the type is that of `known`.
        keeps_types: a type of a schema that ids select has the fields of `known` with their types, too.

        Raises SchemaError if the type of a column cannot be determined, SchemaSourceError if schemas cannot be read,
        and ValueError if neither keys nor values are among the columns.
        """
        from kafkafmt.decode.planning import plan_decoder

        samples = tuple(id_samples) or (() if sample is None else (sample,))
        return plan_decoder(self, columns, topics, sample, samples, known, keeps_types=keeps_types)
