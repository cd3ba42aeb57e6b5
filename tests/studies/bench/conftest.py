"""The bench that the tests of this folder share."""

from __future__ import annotations

import pytest
from tiny.bench import Ran, run_bench


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_bench(tmp_path_factory.mktemp("bench"))
