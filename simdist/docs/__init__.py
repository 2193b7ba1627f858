"""The pages of the documentation, and how to find one.

A page is a Markdown file in this package, in the folder of its kind: tutorials, how-to, reference, explanation; a page
in no folder stands for itself. Its *topic* is its path without the ending, as "how-to/inject-a-fault". Pages are plain
CommonMark with tables, so that they read the same in a terminal (`simdist docs`), in a repository and on the site
(`tools/docs.py`). The first line of a page is its title, the paragraph after it the summary.
"""

from simdist.docs._pages import FOLDER, KINDS, Hit, Page, close_to, find, pages, search

__all__ = ["FOLDER", "KINDS", "Hit", "Page", "close_to", "find", "pages", "search"]
