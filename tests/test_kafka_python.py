"""What of kafka-python is used: public names only. Nothing derives from its clients or touches their private members.

So a new version of kafka-python breaks nothing but what it announces, and `pyproject.toml` needs no upper limit.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kafka-python")]  # one worker parses all files once

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("python", "tests", "bench", "tools")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
KAFKA = "kafka"
# Most files need not be parsed: a line begins the import of kafka-python.
IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+kafka\b|import\b.*\bkafka\b)", re.MULTILINE)
# What the product takes from kafka-python, beside its errors and the messages of `kafka.protocol`.
USED = {
    "kafka": {
        "IsolationLevel",
        "KafkaAdminClient",
        "KafkaConsumer",
        "KafkaProducer",
        "OffsetSpec",
        "TopicPartition",
        "errors",
    },
    "kafka.admin": {
        "AlterConfigOp",
        "ConfigResourceType",
        "ConfigSourceType",
        "ConfigType",
    },
    "kafka.cluster": {"ClusterMetadata"},
    "kafka.consumer.fetcher": {"ConsumerRecord", "FetchManagerMetrics", "Fetcher"},
    "kafka.consumer.subscription_state": {
        "AsyncConsumerRebalanceListener",
        "ConsumerRebalanceListener",
        "SubscriptionState",
        "TopicPartitionState",
    },
    "kafka.coordinator.consumer": {"ConsumerCoordinator"},
    "kafka.future": {"Future"},
    "kafka.metrics": {"AnonMeasurable", "MetricConfig", "Metrics"},
    "kafka.net.compat": {"KafkaNetClient"},
    "kafka.net.inet": {"create_connection"},
    "kafka.net.manager": {"KafkaConnectionManager"},
    "kafka.net.sasl": {"SASL_MECHANISMS", "get_sasl_mechanism", "register_sasl_mechanism"},
    "kafka.net.sasl.abc": {"SaslMechanism"},
    "kafka.net.sasl.scram": {"SaslMechanismScram"},
    "kafka.net.selector": {"NetworkSelector"},
    "kafka.partitioner": {"DefaultPartitioner", "Partitioner"},
    "kafka.producer.future": {"FutureProduceResult", "FutureRecordMetadata", "RecordMetadata"},
    "kafka.record.default_records": {"DefaultRecordBatchBuilder"},
    "kafka.serializer": {"DeserializeWrapper", "Deserializer", "SerializeWrapper", "Serializer"},
    "kafka.structs": {"ConsumerGroupMetadata", "OffsetAndMetadata", "OffsetAndTimestamp", "TopicPartition"},
}
# Public classes, beside errors, from which classes of the product derive.
BASES = {"AbstractTokenProvider", "AsyncConsumerRebalanceListener", "EncodeBuffer", "SaslMechanism"}
# The server reads the schemas of messages, which have no public name, to measure and encode any message.
SCHEMA, SCHEMA_READERS = "_struct", {"python/kafkafmt/server", "tests/server"}
# Public, in spite of their names.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace"}
DOCUMENTED |= {"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_PARTITION_EOF"}  # codes of confluent-kafka's errors


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


@cache
def imports(path: Path) -> list[tuple[str, str, str]]:
    """Module, name and local name of what a file imports from kafka-python; "" for the name of a whole module."""
    return list(imports_in(tree(path))) if IMPORTS.search(path.read_bytes()) else []


def imports_in(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and not node.level and is_of_kafka(node.module or ""):
            yield from ((node.module or "", alias.name, alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if is_of_kafka(alias.name):
                    yield alias.name, "", alias.asname or KAFKA


def is_of_kafka(module: str) -> bool:
    return module.partition(".")[0] == KAFKA


@cache
def own_names() -> frozenset[str]:
    """Private names that our modules, kernels and tests define."""
    found = set()
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and is_self(node.value):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    for path in (ROOT / "src").rglob("*.pyi"):
        found.update(re.findall(r"\b_\w+", path.read_text()))
    return frozenset(found)


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def test_the_product_takes_only_these_names_of_kafka_python() -> None:
    found = defaultdict(set)
    for path in FILES:
        if path.is_relative_to(ROOT / "python"):
            for module, name, _ in imports(path):
                if name and module != "kafka.errors" and not f"{module}.".startswith("kafka.protocol."):
                    found[module].add(name)
    assert dict(found) == USED


def test_no_module_imports_a_private_name_of_kafka_python() -> None:
    private = [
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path in FILES
        for module, name, _ in imports(path)
        if any(part.startswith("_") for part in [*module.split("."), name])
    ]
    assert private == []


def test_no_class_derives_from_one_of_kafka_python_that_is_not_made_for_it() -> None:
    """Errors and the classes of the table are, in tests all but clients. So no constructor of a client is changed."""
    wrong = []
    for path in FILES:
        modules = {local: module for module, _, local in imports(path)}
        if not modules:
            continue
        is_test = path.is_relative_to(ROOT / "tests")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                for base in map(ast.unparse, node.bases):
                    first, last = base.split(".")[0], base.split(".")[-1]
                    is_allowed = not last.startswith("Kafka") if is_test else last in BASES
                    if first in modules and not last.endswith("Error") and not is_allowed:
                        wrong.append(f"{path.relative_to(ROOT)}: class {node.name}({base})")
    assert wrong == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_with_kafka_python_touches_a_private_member_that_is_not_ours(folder: str) -> None:
    wrong = []
    for path in FILES:
        if not path.is_relative_to(ROOT / folder) or not imports(path):
            continue
        reads_schemas = str(path.parent.relative_to(ROOT)) in SCHEMA_READERS
        for node in ast.walk(tree(path)):
            if not isinstance(node, ast.Attribute) or is_self(node.value):
                continue
            is_private = node.attr.startswith("_") and not node.attr.startswith("__")
            is_known = node.attr in DOCUMENTED or node.attr in own_names()
            if is_private and not is_known and not (reads_schemas and node.attr == SCHEMA):
                wrong.append(f"{path.relative_to(ROOT)}, line {node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_no_module_reads_the_source_of_kafka_python() -> None:
    reading = re.compile(r"getsource|kafka\.__(?:file|path)__|find_spec\(.kafka\b")
    assert [str(path) for path in FILES if path != Path(__file__) and reading.search(path.read_text())] == []


def test_the_dependency_on_kafka_python_has_no_upper_limit() -> None:
    wanted = re.findall(r'"kafka-python([^"]*)"', (ROOT / "pyproject.toml").read_text())
    assert wanted
    assert all(re.fullmatch(r">=[\d.]+", limits) for limits in wanted)
