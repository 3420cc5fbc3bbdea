"""Help texts for the options that kafkafmt adds to kafka-python's clients, or whose meaning it extends.

The tables in the documentation are generated from here. Defaults are those of each class's `DEFAULT_CONFIG`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kafkafmt._util.options import Option
from kafkafmt.client.client_config import parse_option
from kafkafmt.client.consumer import Consumer
from kafkafmt.client.producer import Producer
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.client.raw_producer import RawProducer


def _options(
    client: type[Producer | RawProducer | Consumer | RawConsumer], helps: Mapping[str, str]
) -> tuple[Option, ...]:
    defaults = client.DEFAULT_CONFIG
    return tuple(
        Option(name, partial(parse_option, name, defaults=defaults), str(defaults[name]), text)
        for name, text in helps.items()
    )


PRODUCER_OPTIONS = _options(
    Producer,
    {
        "batch_size": "target size of a batch in bytes, after compression. Larger batches compress better and need "
        "fewer requests: 100 kB to 1 MB for throughput",
        "linger_ms": "how long a batch that is not full waits for more records, in milliseconds",
        "buffer_memory": "bytes that all batches together may hold. An open batch holds its records uncompressed, in "
        "memory that grows with them. Kafka's producer reserves `batch_size` at once; here a thousand quiet partitions "
        "cost little",
        "budget": "a [`MemoryBudget`](memory.md#a-budget) that several producers share. Each producer may hold its "
        "`buffer_memory` at most, all together the budget's total. Callers of `send` get bytes in the order of their "
        "calls. While a caller waits, batches are sent without lingering",
        "compression_type": "`gzip`, `snappy`, `lz4` or `zstd`",
        "compression_level": "level of the codec, if it has levels; None: the codec's default",
        "topic_limits": "ask the brokers for `max.message.bytes`",
        "estimator": "`recent`: the largest of a topic's last 50 ratios; `kip126`: the estimator of KIP-126, as in "
        "Kafka; or an estimator object, with other parameters or shared by several producers",
        "send_raw_bytes": "True for a RawProducer, which sends whole batches (KIP-712); also `send.raw.bytes`",
        "max_request_size": "largest size in bytes of a request, and of a record before compression",
        "delivery_timeout_ms": "how long the producer tries to deliver a record, in milliseconds",
        "max_block_ms": "how long `send` waits for metadata and memory, in milliseconds",
    },
)
RAW_PRODUCER_OPTIONS = _options(
    RawProducer,
    {
        "send_raw_bytes": "must be True; `Producer(send_raw_bytes=True)` is a RawProducer, too (KIP-712)",
        "max_batches_per_request": "how many batches of a partition one request may hold. Brokers take one. `auto`: "
        "the number that the target reports, as `kafkafmt serve --allow-produce` does",
    },
)
_BUDGET = (
    "a [`MemoryBudget`](memory.md#a-budget) that bounds the bytes that are fetched and not returned. Several consumers "
    "may share it. One batch may be larger. A partition whose bytes are not free waits"
)
CONSUMER_OPTIONS = _options(
    Consumer,
    {
        "budget": _BUDGET,
        "fetch_raw_bytes": "True for a RawConsumer, which returns whole batches (KIP-712); also `fetch.raw.bytes`",
    },
)
RAW_CONSUMER_OPTIONS = _options(
    RawConsumer,
    {
        "budget": _BUDGET,
        "fetch_raw_bytes": "must be True; `Consumer(fetch_raw_bytes=True)` is a RawConsumer, too (KIP-712)",
        "keep_control_batches": "return control batches, too, for a copy in which transactions end at the same offsets",
        "trim_first_batch": "open the first batch and remove the records before the position; False: return it whole",
    },
)
