"""Java's drivers, compiled against the jars of a release of Kafka's clients, in build/clients."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker.jars import JarSet, java_clients, scala_clients
from clients.install import SITES
from oracle.kafka import java

SOURCES = Path(__file__).with_name("drivers") / "java"
JVM_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class JavaDriver:
    """A program of drivers/java, with the sources that it is made of, for some jars."""

    name: str
    sources: tuple[str, ...]
    jars: tuple[JarSet, ...]

    def command(self) -> list[str]:
        """The command up to the program's arguments. What changed is compiled first."""
        classpath = os.pathsep.join(jars.classpath() for jars in self.jars)
        classes = self._compiled(classpath)
        return [java("java"), *JVM_OPTIONS, "-cp", f"{classpath}{os.pathsep}{classes}", self.name]

    def _compiled(self, classpath: str) -> Path:
        sources = [SOURCES / f"{name}.java" for name in self.sources]
        classes = SITES / f"java-{self.jars[0].folder}-{self.name}"
        built = classes / f"{self.name}.class"
        if not built.exists() or built.stat().st_mtime < max(source.stat().st_mtime for source in sources):
            classes.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="compiling-", dir=classes) as partial:
                self._compile(classpath, sources, partial)
                for file in sorted(Path(partial).iterdir(), key=lambda file: file.stem == self.name):
                    file.replace(classes / file.name)
        return classes

    def _compile(self, classpath: str, sources: Sequence[Path], folder: str) -> None:
        command = [java("javac"), "-nowarn", "-d", folder, "-cp", classpath, *map(str, sources)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def consuming(jars: JarSet) -> JavaDriver:
    """The consumer of a release from 0.9 on."""
    return JavaDriver("Consuming", ("Task", "Consuming"), (jars,))


def producing(jars: JarSet) -> JavaDriver:
    """The producer of a release from 0.8.2 on."""
    return JavaDriver("Producing", ("Producing",), (jars,))


def simple() -> JavaDriver:
    """The simple consumer of 0.8.2."""
    return JavaDriver("Simple", ("Task", "Simple"), (scala_clients("0.8.2.2"), java_clients("0.8.2.2")))
