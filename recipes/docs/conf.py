"""The documentation site: README, guides, tutorials and every exported docstring.

    pip install -e ".[docs]" && sphinx-build --fail-on-warning -c recipes/docs . site

Sphinx, because the docstrings' references are in its notation, which it checks: a name that is not
there fails the build. The source folder is the repository's, so that README.md, CHANGELOG.md and
recipes/README.md are pages as they are, and their links lead where they lead elsewhere. Nothing is
fetched, neither by the build nor by the pages: fonts are the reader's own, formulas are MathML.
"""

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

import torchrl_glam

project = "torchrl_glam"
author = "The torchrl_glam authors"
release = version = torchrl_glam.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
root_doc = "recipes/docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "recipes/README.md",
    "recipes/docs/**",
    "recipes/results/README.md",
    "recipes/results/*/README.md",
    "torchrl_glam/models/architectures.md",
]
exclude_patterns = ["recipes/docs/tutorials/index.rst"]  # pictures of all: the menu has their names

# --- pages
html_theme = "furo"
html_title = f"torchrl_glam {release}"
html_copy_source = False
html_extra_path = ["index.html"]
html_static_path = ["static"]
html_css_files = ["site.css"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

# --- docstrings
autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_mock_imports = ["alfworld", "gymnasium", "jericho", "minigrid", "scienceworld"]
autodoc_mock_imports += ["textworld", "textworld_express"]
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_custom_sections = [
    "Description",
    "Action Space",
    "Observation Space",
    "Starting State",
    "Rewards",
    "Episode End",
    "Version History",
]
# Names of this package must be found, but for type variables; those of others would need their
# indices from the network.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(abc|collections|matplotlib|minigrid|nn|numpy|omegaconf|os|pathlib|peft)\..*"),
    ("py:.*", r"(random|scienceworld|tensordict|textworld_express|torch|torchrl)\..*"),
    ("py:.*", r"(transformers|typing)\..*"),
    # bases of exported ones
    (
        "py:class",
        r"torchrl_glam\.(goals\.sampler\.Resumable|models\.trunks\..*|objectives\.trunk\.SharedTrunk"
        r"|runs\.config\.rules\.Rules)",
    ),
    ("py:class", r"[^.]*"),  # the types of signatures, as they stand there
    ("py:.*", r"torchrl_glam\.(.*\.)?_.*"),  # private ones have no page
    ("py:class", r"torchrl_glam\.runs\..*\.(Batch|Config|Given|Result|T)"),
]

# --- tutorials: run by the build, with what they print and draw
sphinx_gallery_conf = {
    "examples_dirs": "recipes/tutorials",
    "gallery_dirs": "recipes/docs/tutorials",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "reset_modules": (),
    "show_signature": False,
    "write_computation_times": False,
}


html_math_renderer = "mathml"


def _formula(as_block):
    def visit(translator, node):
        try:
            translator.body.append(tex2mathml(node.astext(), as_block=as_block))
        except MathError as error:
            logging.getLogger(__name__).warning(str(error), location=node)
        raise nodes.SkipNode

    return visit, None


def _mark_untyped(app, what, name, obj, options, lines):
    """Keeps napoleon from taking "text: more text" of a property for a type and a description."""
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")


def setup(app):
    app.add_html_math_renderer("mathml", _formula(as_block=False), _formula(as_block=True))
    app.connect("autodoc-process-docstring", _mark_untyped, priority=0)
