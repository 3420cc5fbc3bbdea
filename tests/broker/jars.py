"""Jars that Maven fetches into build/ once: Kafka 3.9 and 4 (broker, tools and clients), and Spark's own Kafka source.

`python tests/broker/jars.py` fetches what is absent; with a name it prints the folder of that one. Jars are copied
beside their place and renamed into it, so a fetch that was killed leaves nothing that looks complete.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "build" / "jars"


class MissingJarsError(Exception):
    """The jars are not there and could not be fetched; the message is one line that says what to do."""


@dataclass(frozen=True)
class JarSet:
    """A jar of a POM beside this file, and what it depends on; `main`, without its suffix, is moved in last.

    properties: of the POM.
    """

    pom: str
    folder: str
    main: str
    properties: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return JARS / self.folder

    @property
    def is_present(self) -> bool:
        """Where the last jar is, all are."""
        return (self.path / f"{self.main}.jar").is_file()

    def fetch(self) -> Path:
        """The folder of the jars, after fetching them where they are absent."""
        if self.is_present:
            return self.path
        maven = shutil.which("mvn")
        if maven is None:
            raise MissingJarsError(f"mvn is missing, and {self.main} comes through it: apt-get install maven")
        JARS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetching-", dir=JARS) as partial:
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
            command = [maven, "-q", "-B", "-f", str(Path(__file__).with_name(self.pom)), *goal]
            command += [f"-D{setting}" for setting in self.properties]
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                raise MissingJarsError(f"mvn could not fetch {self.main}: {_first_error(done.stdout)}")
            self.path.mkdir(exist_ok=True)
            for jar in sorted(Path(partial).iterdir(), key=lambda jar: jar.stem == self.main):
                jar.replace(self.path / jar.name)
        return self.path

    def classpath(self) -> str:
        """Every jar, fetched where absent, as Java's class path takes them."""
        return str(self.fetch() / "*")


KAFKA = JarSet("pom.xml", "kafka-3.9.1", "kafka_2.13-3.9.1")
KAFKA_4 = JarSet("kafka-4-pom.xml", "kafka-4.3.1", "kafka_2.13-4.3.1")
KAFKA_4_0 = JarSet("kafka-4-pom.xml", "kafka-4.0.0", "kafka_2.13-4.0.0", ("kafka=4.0.0",))
TIERED = JarSet("tiered-pom.xml", "tiered-1.78.1", "bcprov-jdk18on-1.78.1")
LOCAL_TIERED_3 = JarSet(
    "local-tiered-pom.xml", "local-tiered-3.9.1", "kafka-storage-3.9.1-test", ("kafka=3.9.1",)
)
LOCAL_TIERED_4 = JarSet("local-tiered-pom.xml", "local-tiered-4.3.1", "kafka-storage-4.3.1-test")
SPARK_KAFKA = JarSet("spark-pom.xml", "spark-kafka-4.2.0", "spark-sql-kafka-0-10_2.13-4.2.0")
SPARK_AVRO = JarSet("spark-avro-pom.xml", "spark-avro-4.2.0", "spark-avro_2.13-4.2.0")

ICEBERG_REST = JarSet("iceberg-rest-pom.xml", "iceberg-rest-1.10.1", "iceberg-open-api-1.10.1-test-fixtures")

APICURIO_2 = JarSet(
    "apicurio-2-pom.xml",
    "apicurio-2.6.13",
    "apicurio-registry-serdes-avro-serde-2.6.13.Final",
    ("apicurio=2.6.13.Final",),
)
APICURIO_3 = JarSet(
    "apicurio-3-pom.xml", "apicurio-3.1.7", "apicurio-registry-avro-serde-kafka-3.1.7", ("apicurio=3.1.7",)
)


def java_clients(version: str) -> JarSet:
    """A release of Kafka's Java clients."""
    return JarSet(
        "clients-pom.xml", f"clients-{version}", f"kafka-clients-{version}", (f"clients={version}",)
    )


def scala_clients(version: str) -> JarSet:
    """A release of Kafka's Scala clients: before 0.9 it had all consumers."""
    return JarSet(
        "scala-clients-pom.xml", f"scala-clients-{version}", f"kafka_2.10-{version}", (f"clients={version}",)
    )


# What `make test` needs. The other sets are fetched by the tests that use them.
_SETS = {
    "kafka": KAFKA,
    "kafka-4": KAFKA_4,
    "spark-kafka": SPARK_KAFKA,
    "tiered": TIERED,
    "clients-0.10.2.2": java_clients("0.10.2.2"),
}


def _first_error(output: str) -> str:
    lines = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines() or ["no output"]
    return lines[0].strip()


if __name__ == "__main__":
    try:
        for name in sys.argv[1:] or _SETS:
            print(_SETS[name].fetch())
    except MissingJarsError as missing:
        sys.exit(str(missing))
