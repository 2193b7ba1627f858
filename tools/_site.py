"""The site: the pages, built by Sphinx with MyST and furo. Warnings are errors, so every link between pages holds."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import simdist
from simdist.docs import FOLDER, pages

__all__ = ["build_site"]

_NEEDED = ("sphinx", "myst_parser", "furo")
_TITLES = {
    "": "About",
    "tutorials": "Tutorials",
    "how-to": "How-to",
    "explanation": "Explanation",
    "reference": "Reference",
}
_CONFIGURATION = f"""
project = "simdist"
copyright = "the authors of simdist"
version = release = "{simdist.__version__}"
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "simdist {simdist.__version__}"
html_theme_options = {{"navigation_with_keys": True}}
exclude_patterns = []
suppress_warnings = ["myst.header"]
"""


def build_site(out: Path) -> int:
    """Build the site in the folder `out`; returns 2 if Sphinx is not installed, 1 after any warning, else 0."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{', '.join(missing)}: not installed; pip install -e '.[docs]'", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pages"
        shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        index = source / "index.md"
        index.write_text(f"{index.read_text(encoding='utf-8')}\n{_contents()}", encoding="utf-8")
        for file in source.rglob("*.md"):  # `py` marks code that is not run; Sphinx highlights `python`
            file.write_text(file.read_text(encoding="utf-8").replace("```py\n", "```python\n"), encoding="utf-8")
        (source / "conf.py").write_text(_CONFIGURATION, encoding="utf-8")
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(out)]
        return int(subprocess.run(command, check=False).returncode != 0)


def _contents() -> str:
    """Return the tables of contents at the side of each page, by kind."""
    parts = []
    for kind, group in groupby(pages(), key=lambda page: page.kind):
        topics = "\n".join(page.topic for page in group if page.topic != "index")
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {_TITLES[kind]}\n\n{topics}\n```\n")
    return "\n".join(parts)
