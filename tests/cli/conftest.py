"""What all tests of the command share."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from polycentric.cli import outcome


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Type a command; its code, stdout and stderr."""

    def command(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        code = outcome(list(words))
        printed = capsys.readouterr()
        return SimpleNamespace(code=code, out=printed.out, err=printed.err, lines=printed.err.splitlines())

    return command
