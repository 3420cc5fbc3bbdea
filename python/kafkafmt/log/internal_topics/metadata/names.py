"""Names of the numbers in metadata records, and the configurations whose values are secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"

# Kafka's `ConfigResource.Type`, as its tools name them (`kafka-configs --entity-type`).
CONFIG_RESOURCES: Mapping[int, str] = {
    2: "topic",
    4: "broker",
    8: "broker-logger",
    16: "client-metrics",
    32: "group",
}
# Kafka's `ResourceType`, `PatternType`, `AclOperation` and `AclPermissionType`.
ACL_RESOURCES: Mapping[int, str] = {
    1: "ANY",
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
PATTERNS: Mapping[int, str] = {1: "ANY", 2: "MATCH", 3: "LITERAL", 4: "PREFIXED"}
OPERATIONS: Mapping[int, str] = {
    1: "ANY",
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}
PERMISSIONS: Mapping[int, str] = {1: "ANY", 2: "DENY", 3: "ALLOW"}
SCRAM_MECHANISMS: Mapping[int, str] = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
SECURITY_PROTOCOLS: Mapping[int, str] = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}

# The first level of `metadata.version` in each release, from 3.0-IV1 on. The last number of a release is its -IV.
_RELEASES = {
    1: ("3.0", 1),
    2: ("3.1", 0),
    3: ("3.2", 0),
    4: ("3.3", 0),
    8: ("3.4", 0),
    9: ("3.5", 0),
    12: ("3.6", 0),
    15: ("3.7", 0),
    20: ("3.8", 0),
    21: ("3.9", 0),
    22: ("4.0", 0),
    26: ("4.1", 0),
    28: ("4.2", 0),
    30: ("4.3", 0),
}
_LAST_LEVEL = 30

# All properties of type PASSWORD in Kafka have such names, with or without a listener's prefix. Plugins have others, so
# this hides too much rather than too little.
_SENSITIVE = re.compile(
    r"password|passphrase|secret|credential|jaas\.config$"
    r"|keystore\.(key|certificate\.chain)$|truststore\.certificates$"
    r"|(^|[._-])((master|private|api|access|account)[._-]key|token)$",
    re.IGNORECASE,
)


def name_of(number: int, names: Mapping[int, str]) -> str:
    """Return the name of a number; the number itself as text if Kafka 4.3 has none.

    >>> name_of(2, PERMISSIONS), name_of(9, PERMISSIONS)
    ('DENY', '9')
    """
    return names.get(number, str(number))


def metadata_version_name(level: int) -> str | None:
    """Return Kafka's name of a level of `metadata.version`; None for a level after Kafka 4.3.

    >>> metadata_version_name(7), metadata_version_name(30), metadata_version_name(99)
    ('3.3-IV3', '4.3-IV0', None)
    """
    if not 1 <= level <= _LAST_LEVEL:
        return None
    first = max(one for one in _RELEASES if one <= level)
    release, number = _RELEASES[first]
    return f"{release}-IV{number + level - first}"


def is_sensitive(config_name: str) -> bool:
    """Whether the value of a configuration property is a secret, by its name.

    Brokers keep the passwords of dynamic configurations as plain text in the metadata log.

    >>> is_sensitive("listener.name.ssl.ssl.keystore.password"), is_sensitive("retention.ms")
    (True, False)
    """
    return _SENSITIVE.search(config_name) is not None
