"""How the documentation is built: `make docs`. Offline; every warning is an error."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for _site, which writes what is generated

project = "fedloom"
author = "the fedloom authors"
copyright = "the fedloom authors, Apache-2.0"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "_site.generated",
    "_site.docstrings",
    "_site.repository",
]
exclude_patterns = ["_build", "_site"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
myst_url_schemes = {"http": None, "https": None, "mailto": None, "repository": None}  # the last: _site/repository.py

autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_display_short_literal_types = True
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries = False
default_role = "code"
smartquotes = False  # --out is an option and no dash

html_theme = "furo"
html_title = "fedloom"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
