"""What tests of readers share."""

import pytest

from vhydro.data import memory


@pytest.fixture
def allow(monkeypatch):
    """Sets how many bytes reading any file may take."""

    def to(count: int) -> None:
        monkeypatch.setattr(memory, "FREE", count)
        monkeypatch.setattr(memory, "EXPANSION", 0)

    return to
