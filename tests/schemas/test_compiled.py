"""The generated modules are what `tools/compile_schemas.py` makes of the schemas in Kafka's jars."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from broker.jars import KAFKA, KAFKA_4, KAFKA_4_0, ROOT
from kafkafmt.schemas import Struct
from schemas.samples import MODULES, message_classes

pytestmark = pytest.mark.slow

TOOL = ROOT / "tools" / "compile_schemas.py"


@pytest.mark.oracle
def test_modules_when_compiled_from_the_jars_then_they_are_those_that_are_committed() -> None:
    for jars in (KAFKA, KAFKA_4, KAFKA_4_0):
        jars.fetch()
    ran = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_modules_when_read_then_no_class_and_no_field_has_a_text_of_kafkas_schemas() -> None:
    for module in MODULES:
        with open(str(module.__file__), encoding="utf-8") as source:  # noqa: PTH123 - the name of a module is text
            tree = ast.parse(source.read())
        assert all(
            ast.get_docstring(node) is None for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
        )


def test_schemas_when_compared_with_their_classes_then_names_and_defaults_are_the_same() -> None:
    for made in message_classes().values():
        instance = made()
        for field in made.SCHEMA.fields:
            value = getattr(instance, field.name)
            is_struct = field.type == "struct" and not field.array and field.default is not None
            assert value == (getattr(made, str(field.struct))() if is_struct else field.default), (
                made,
                field,
            )


def test_schemas_when_they_name_a_structure_then_the_message_has_its_class() -> None:
    for made in message_classes().values():
        for struct in made.SCHEMA.structs:
            nested = getattr(made, struct.name)
            assert issubclass(nested, Struct)
            assert nested.__slots__[: len(struct.fields)] == tuple(field.name for field in struct.fields)
