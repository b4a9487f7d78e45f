"""How Sphinx builds these pages: sphinx-build -W --keep-going -b html docs docs/_build/html"""

from anygpu import __version__

project = "anygpu"
author = "The anygpu developers"
project_copyright = "The anygpu developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

myst_heading_anchors = 3

# Docstrings put names of code in single backticks, as Markdown does.
default_role = "code"
autodoc_class_signature = "separated"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80

html_theme = "pydata_sphinx_theme"
html_title = "anygpu"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
