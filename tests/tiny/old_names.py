"""The old names of these modules (`toys`, `builders.regions`), until every test says the new ones."""

import importlib
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path

HERE = Path(__file__).parent
OLD = {"toys", "homes", "standins", "vcr_files", "wordnets"}
OLD |= {"builders", *(f"builders.{path.stem}" for path in HERE.glob("*.py"))}


class OldName(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in OLD:
            return importlib.machinery.ModuleSpec(name, self, is_package=name == "builders")
        return None

    def create_module(self, spec):
        new = "tiny" if spec.name == "builders" else f"tiny.{spec.name.rpartition('.')[2]}"
        module = importlib.import_module(new)
        self.own = (module, module.__spec__)
        return module

    def exec_module(self, module):
        module.__spec__ = self.own[1]


sys.meta_path.insert(0, OldName())
