"""Puts drawings into the page itself, so that their lines and text have the theme's colour.

An image in a file beside the page follows the system's light or dark setting, not the reader's choice on the site.
A drawing says `currentColor` for all that is not one of its own colours.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

_PROLOGUE = re.compile(r"\A.*?(?=<svg\b)", re.DOTALL)
_STYLE_OF_FILE = re.compile(r"<style class=\"file\">.*?</style>", re.DOTALL)


def drawing(svg: str, label: str, *classes: str) -> nodes.raw:
    """Return the node of an SVG text. label: what a screen reader says of it; classes: more of the figure's."""
    svg = _STYLE_OF_FILE.sub("", _PROLOGUE.sub("", svg))
    label = nodes.Text(label).astext().replace("&", "&amp;").replace('"', "&quot;")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return nodes.raw("", f'<figure class="{" ".join(("drawing", *classes))}">{svg}</figure>', format="html")


class InlineSvg(SphinxPostTransform):
    """Replaces images of local SVG files by the drawings."""

    default_priority = 5  # before images are collected
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        for image in list(self.document.findall(nodes.image)):
            path = Path(self.app.srcdir, image["candidates"].get("*", image["uri"]))
            if path.suffix == ".svg" and path.is_file():
                parent = image.parent
                alone = isinstance(parent, nodes.paragraph) and len(parent.children) == 1
                (parent if alone else image).replace_self(
                    drawing(path.read_text(), image.get("alt", ""), "wide")
                )


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_post_transform(InlineSvg)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
