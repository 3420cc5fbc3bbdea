"""The names of contenders, as the tables have them. Needs the standard library only, as the peers do."""

from __future__ import annotations

OURS, FLOOR = "ours", "floor"
JAVA, AIOKAFKA, KAFKA_PYTHON = "java", "aiokafka", "kafka-python"
LIBRDKAFKA, CONFLUENT = "librdkafka", "confluent-kafka"
