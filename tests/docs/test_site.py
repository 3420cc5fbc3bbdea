"""The documentation site: it is built without a warning, and its reference has all that is public."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import kafkafmt
from kafkafmt.cli import main

pytest.importorskip("furo")
pytest.importorskip("pyspark")

from sphinx.util.inventory import InventoryFile

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "kafkafmt",
    "kafkafmt.accumulator",
    "kafkafmt.codecs",
    "kafkafmt.decode",
    "kafkafmt.export",
    "kafkafmt.log",
    "kafkafmt.memory",
    "kafkafmt.net",
    "kafkafmt.schemas",
    "kafkafmt.spark",
    "kafkafmt.streams",
]

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.xdist_group("site"),  # it is built once
    pytest.mark.skipif(shutil.which("dot") is None, reason="figures need Graphviz"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ("-q", "-W", "--keep-going", "-E", "-j", "2", "-d", str(folder / "doctrees"))
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def documented(site: Path) -> set[str]:
    """The names of the reference: Python's, and programs with their options."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {name for names in inventory.data.values() for name in names}


@pytest.mark.parametrize("package", PACKAGES)
def test_reference_when_built_then_has_every_public_name(package: str, documented: set[str]) -> None:
    for name in importlib.import_module(package).__all__:
        assert documented & set(qualified_names(package, name)), name


def qualified_names(package: str, name: str) -> Iterator[str]:
    """Under what names the reference may have it: it is described once, and may be imported from several packages."""
    described = getattr(importlib.import_module(package), name)
    if inspect.ismodule(described):
        yield described.__name__
        return
    for other in PACKAGES:
        if getattr(importlib.import_module(other), name, None) is described:
            yield f"{other}.{name}"


def test_reference_when_built_then_has_every_command_and_option(documented: set[str]) -> None:
    for path, command in commands("kafkafmt", main):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                option = f"{path.replace(' ', '-')}.{parameter.opts[0]}"
                assert option in documented, option


def commands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            other = command.get_command(context, name)
            assert other is not None
            yield from commands(f"{path} {name}", other)


def test_page_on_architecture_when_it_says_how_a_byte_travels_then_has_a_figure_of_it(site: Path) -> None:
    page = (site / "architecture.html").read_text()
    sections = re.findall(r"<section id=\"how-a-b[a-z-]+-travels.*?(?=<section|\Z)", page, re.DOTALL)
    assert len(sections) >= 9
    assert all("<svg" in section for section in sections)


def test_site_when_built_then_asks_nothing_of_the_network(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?:https?:)?//(?!$)[^\"]+\"")
    for page in site.rglob("*.html"):
        assert not loaded.findall(page.read_text()), page.name
    assert kafkafmt.__version__ in (site / "index.html").read_text()
    assert (site / "searchindex.js").is_file()
