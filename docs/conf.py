"""How Sphinx builds these pages: sphinx-build -W --keep-going -b html docs docs/_build/html"""

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from sphinx.application import Sphinx

from anygpu import __version__

sys.path.insert(0, str(Path(__file__).parent))
from gallery_settings import sphinx_gallery_conf  # noqa: F401

project = "anygpu"
author = "The anygpu developers"
project_copyright = "The anygpu developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_design", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3
myst_substitutions = {"version": version}

# Docstrings put names of code in single backticks, as Markdown does.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 80

html_theme = "pydata_sphinx_theme"
html_title = "anygpu"
html_static_path = ["_static"]
html_css_files = ["anygpu.css"]
html_copy_source = False
html_show_sourcelink = False
# The start page and pages of one leaf have nothing to list beside the text.
html_sidebars = {"index": [], "404": []}
templates_path = ["_templates"]
# Where the site is served, as in "https://example.org/anygpu/". Only links from elsewhere need it.
html_baseurl = os.environ.get("ANYGPU_DOCS_URL", "")
html_favicon = "_static/favicon.ico"
html_context = {
    "default_mode": "auto",
    "html_baseurl": html_baseurl,
    "description": "One decorator makes NumPy functions faster: native code for the processor, or any GPU.",
}
html_theme_options = {
    "logo": {"text": "anygpu", "image_light": "_static/mark.svg", "image_dark": "_static/mark.svg"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": [],
}


def without_signature(app: Sphinx, what: str, name: str, obj: Any, *_: Any) -> tuple[str, str] | None:
    """A record's fields are listed one by one below its name, and a protocol is not called: both need no signature."""
    bare = inspect.isclass(obj) and (issubclass(obj, msgspec.Struct) or getattr(obj, "_is_protocol", False))
    return ("", "") if bare else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", without_signature)
