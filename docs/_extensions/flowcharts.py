"""Draws the pages' flowcharts: Mermaid's text, as GitHub shows it, made into SVG by Graphviz when the site is built.

Only these lines are known, and any other is an error, since a line that is left out would be a wrong figure:

    flowchart TD                     or LR
    name["text<br>text"]             a box; name[("text")] is a store, name(["text"]) an end
    a --> b                          a --> b --> c, a -->|text| b, a -.-> b
    subgraph name["text"] ... end
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from inline_svg import drawing
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_LINE_COLOUR, _FILL_COLOUR = "#010203", "#010204"  # stand for the theme's, which Graphviz does not know
_PHONE_POINTS = 330  # what a phone shows at full size
_HEAD = re.compile(r"flowchart (TD|LR)")
_SUBGRAPH = re.compile(r'subgraph (\w+)(?:\["([^"]+)"\])?')
_NODE = r'(?P<{0}>\w+)(?P<{0}_shape>\[\("[^"]+"\)\]|\(\["[^"]+"\]\)|\["[^"]+"\])?'
_FIRST = re.compile(_NODE.format("node"))
_NEXT = re.compile(r" (?P<arrow>-->|-\.->)(?:\|(?P<text>[^|]+)\|)? " + _NODE.format("node"))
_SHAPES = {"[": "box", "[(": "cylinder", "([": "box"}


class FlowchartError(Exception):
    """A line that is none of those known."""


def as_dot(text: str) -> str:
    """Return the flowchart in Graphviz's language."""
    lines = [line.strip() for line in text.strip().splitlines()]
    head = _HEAD.fullmatch(lines[0])
    if head is None:
        raise FlowchartError(f"expected 'flowchart TD' or 'flowchart LR', found {lines[0]!r}")
    common = f'color="{_LINE_COLOUR}" fontcolor="{_LINE_COLOUR}" fontname="Helvetica"'
    body = "\n".join(statement for line in lines[1:] if line for statement in _statements(line))
    return (
        f"digraph {{ rankdir={'TB' if head[1] == 'TD' else 'LR'} bgcolor=transparent nodesep=0.3 ranksep=0.35 "
        f"{common} fontsize=12\n"
        f'node [shape=box style="rounded,filled" fillcolor="{_FILL_COLOUR}" margin="0.15,0.08" {common} fontsize=13]\n'
        f"edge [{common} fontsize=11 arrowsize=0.7]\n{body}\n}}"
    )


def _statements(line: str) -> Iterator[str]:
    if line == "end":
        yield "}"
    elif subgraph := _SUBGRAPH.fullmatch(line):
        yield f'subgraph cluster_{subgraph[1]} {{ style="rounded,dashed" label={_quoted(subgraph[2] or subgraph[1])}'
    else:
        yield from _chain(line)


def _chain(line: str) -> Iterator[str]:
    found = _FIRST.match(line)
    if found is None:
        raise FlowchartError(f"a line that is not known: {line!r}")
    yield from _node(found)
    while found.end() < len(line):
        before = found["node"]
        found = _NEXT.match(line, found.end())
        if found is None:
            raise FlowchartError(f"a line that is not known: {line!r}")
        yield from _node(found)
        dashed = "style=dashed " if found["arrow"] == "-.->" else ""
        yield f"{before} -> {found['node']} [{dashed}label={_quoted(found['text'] or '')}]"


def _node(found: re.Match[str]) -> Iterator[str]:
    shape = found["node_shape"]
    if shape:
        opening = re.match(r"[\[(]+", shape)
        assert opening is not None
        text = shape[len(opening[0]) + 1 : -len(opening[0]) - 1]
        yield f"{found['node']} [shape={_SHAPES[opening[0]]} label={_quoted(text)}]"


def _quoted(text: str) -> str:
    return '"' + text.replace("<br>", "\\n") + '"'


def as_svg(dot: str) -> str:
    """Return the drawing that Graphviz makes, in the theme's colours."""
    done = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise FlowchartError(done.stderr.strip())
    svg = done.stdout.replace(_LINE_COLOUR, "currentColor")
    return svg.replace(_FILL_COLOUR, "var(--color-background-secondary)")


class Mermaid(SphinxDirective):
    """A flowchart."""

    has_content = True
    option_spec = {"alt": directives.unchanged}  # noqa: RUF012  # docutils has it like that

    def run(self) -> list[nodes.Node]:
        try:
            svg = as_svg(as_dot("\n".join(self.content)))
        except FlowchartError as error:
            raise self.error(str(error)) from None
        except FileNotFoundError:
            raise self.error("figures need Graphviz's `dot` (Debian: apt-get install graphviz)") from None
        width = re.search(r'<svg width="(\d+)pt"', svg)
        broad = ["broad"] if width is not None and int(width[1]) > _PHONE_POINTS else []
        return [
            drawing(svg, self.options.get("alt", "a flowchart; the text around it says the same"), *broad)
        ]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
