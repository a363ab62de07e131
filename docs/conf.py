"""Configuration of the documentation site; `make docs` builds it."""

import importlib.metadata
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER / "extensions"))

project = "edbatch"
author = "The edbatch authors"
copyright = "The edbatch authors, Apache-2.0"
release = importlib.metadata.version("edbatch")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "names_in_code",
    "public_names",
]
exclude_patterns = ["extensions", "inventories", "**.ipynb_checkpoints"]
suppress_warnings = ["config.cache"]
nitpicky = True
nitpick_ignore = [
    # Their projects do not document them.
    ("py:exc", "gymnasium.error.ResetNeeded"),
    ("py:class", "jax._src.core.Var"),
    # `asyncio.Future` names the module that it is compiled in.
    ("py:class", "_asyncio.Future"),
    # The arguments of a function under `eb.cell`, a ParamSpec.
    ("py:class", "P"),
]

# Other projects' names, from files here and not from a network.
_INVENTORIES = {
    "flax": "https://flax.readthedocs.io/en/latest/",
    "gymnasium": "https://gymnasium.farama.org/",
    "jax": "https://docs.jax.dev/en/latest/",
    "matplotlib": "https://matplotlib.org/stable/",
    "numpy": "https://numpy.org/doc/stable/",
    "optax": "https://optax.readthedocs.io/en/latest/",
    "python": "https://docs.python.org/3/",
}
intersphinx_mapping = {
    name: (address, str(FOLDER / "inventories" / f"{name}.inv"))
    for name, address in _INVENTORIES.items()
}
intersphinx_disabled_reftypes = ["std:*"]

# The text of the docstrings: Google's style, names in single backticks.
default_role = "py:name"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 78
add_module_names = False

# Pages are Markdown; notebooks are committed with their outputs.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist"]
nb_execution_mode = "off"
nb_merge_streams = True

# No page needs anything from a network.
html_theme = "sphinx_book_theme"
html_title = "edbatch"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["search_names.js"]
html_copy_source = False
html_show_sourcelink = False
html_last_updated_fmt = None
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search is in the sidebar
    "navigation_with_keys": False,
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}
html_show_search_summary = False  # it fetches pages, which folders forbid
html_context = {"default_mode": "auto"}  # light or dark as the reader's system
