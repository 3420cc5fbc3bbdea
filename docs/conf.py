"""Sphinx's configuration of the documentation site. `make docs` builds it into build/docs, without the network."""

from __future__ import annotations

import sys
from pathlib import Path

import kafkafmt

DOCS = Path(__file__).parent
sys.path.append(str(DOCS / "_extensions"))

project = "kafkafmt"
version = release = kafkafmt.__version__
project_copyright = "the kafkafmt authors"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "docstrings",
    "flowcharts",
    "inline_svg",
    "repository_pages",
    "stub_signatures",
]
exclude_patterns = ["_extensions", "notebooks"]
default_role = "py:obj"  # docstrings have names in single backticks: a link where the name is documented

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]  # flowcharts.py draws it; GitHub draws it, too

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_docstring_signature = False  # stub_signatures.py knows those of compiled functions, with types
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = f"kafkafmt {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
