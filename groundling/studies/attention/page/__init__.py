"""A page to look at: which regions of a photo a model's words attend to, head by head, and what regions read of words.

`look` gives a `Look`, which shows itself in a notebook and writes itself to a file.
"""

from groundling.studies.attention.page.made import look
from groundling.studies.attention.page.page import Look

__all__ = ["Look", "look"]
