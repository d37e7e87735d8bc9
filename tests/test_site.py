"""The documentation site: built strictly, whole, and without a network."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "recipes" / "docs"
FOLDERS = "envs goals models objectives pretraining replay report text viewing".split()


def test_what_answers_name_is_in_their_files():
    """A code word in a row of the fifteen questions is in a file that it links, or the recipe."""
    recipe = (ROOT / "recipes" / "sac_glam.py").read_text(encoding="utf-8")
    rows = (DOCS / "questions.md").read_text(encoding="utf-8").splitlines()[6:]
    assert len(rows) == 15
    for row in rows:
        links = re.findall(r"\]\(([^)]+)\)", row)
        text = recipe + "".join((DOCS / link).read_text(encoding="utf-8") for link in links)
        words = re.findall(r"`(\w+)`", row)
        assert links and not [word for word in words if word not in text], row


def made(folder, names):
    outputs = set() if Path(folder) == ROOT / "torchrl_glam" else {"runs"}
    return {"__pycache__", *outputs, *(["tutorials"] if Path(folder) == DOCS else [])} & {*names}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built pages, all of whose names and files are there.

    Tutorials, which have tests of their own, are not run.
    """
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("envs", "recipes", "tests", "torchrl_glam"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=made)
    for name in ("README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q"]
    command += ["-D", "plot_gallery=0", "-c", "recipes/docs", ".", str(out)]
    result = subprocess.run(
        command, cwd=source, env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return out


@pytest.mark.slow
def test_every_exported_name_has_an_entry(site):
    from sphinx.util.inventory import InventoryFile

    with open(site / "objects.inv", "rb") as file:
        entries = InventoryFile.load(file, "", os.path.join)
    known = {name for kind, names in entries.items() if kind.startswith("py:") for name in names}
    exported = {
        f"torchrl_glam.{folder}.{name}"
        for folder in FOLDERS
        for name in importlib.import_module(f"torchrl_glam.{folder}").__all__
    }
    assert len(exported) > 80 and not exported - known


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere_and_their_links_lead_somewhere(site):
    """Nor do formulas need a script."""
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"([^\"]+)\"", text)
        loaded += re.findall(
            r"<link[^>]*rel=\"(?:stylesheet|icon|preload)\"[^>]*href=\"([^\"]+)", text
        )
        followed = re.findall(r"<a[^>]*\shref=\"([^\"]+)\"", text)
        assert not [url for url in loaded if urlsplit(url).netloc], page
        for url in loaded + followed:
            parts = urlsplit(url)
            if not parts.scheme and not parts.netloc and parts.path:
                assert (page.parent / unquote(parts.path)).exists(), f"{page}: {url}"
    for style in site.rglob("*.css"):
        remote = re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", style.read_text("utf-8"))
        assert not remote, style
    paper = (site / "recipes" / "docs" / "paper.html").read_text(encoding="utf-8")
    assert paper.count("<math") > 8 and not re.search("<script[^>]+mathjax", paper, re.I)
    for equation in ("Equation 1,", "Equation 2,", "Equation 3,", "Equations 4 and 5,"):
        assert equation in paper
