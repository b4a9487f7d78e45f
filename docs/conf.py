"""How Sphinx builds these pages: sphinx-build -W --keep-going -b html docs docs/_build/html"""

import inspect
from typing import Any

import msgspec
from sphinx.application import Sphinx

from anygpu import __version__

project = "anygpu"
author = "The anygpu developers"
project_copyright = "The anygpu developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["deflist", "substitution"]
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
# Pages without neighbours: a list of them beside the text would be empty.
html_sidebars = {
    "index": [],
    "tutorial/first-look": [],
    "tutorial/offload": [],
    "tutorial/many-tasks": [],
    "tutorial/share-one-encoder": [],
    "tutorial/arrays": [],
    "tutorial/programs": [],
    "benchmarks": [],
    "requirements": [],
    "how-we-release": [],
}
html_theme_options = {
    "show_prev_next": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def without_signature(app: Sphinx, what: str, name: str, obj: Any, *_: Any) -> tuple[str, str] | None:
    """A record's fields are listed one by one below its name, and a protocol is not called: both need no signature."""
    bare = inspect.isclass(obj) and (issubclass(obj, msgspec.Struct) or getattr(obj, "_is_protocol", False))
    return ("", "") if bare else None


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", without_signature)
