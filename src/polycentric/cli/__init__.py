"""The front door: one command, `polycentric`."""

from __future__ import annotations

import sys
import warnings
from typing import cast


def main(arguments: list[str] | None = None) -> None:
    """Run the command; what the user can mend is said in one line, with exit code 2."""
    sys.exit(outcome(sys.argv[1:] if arguments is None else arguments))


def outcome(arguments: list[str]) -> int:
    """The exit code of a command."""
    import typer

    from ..errors import Diverged, Mistake
    from ..machine import keep_freed_memory
    from .app import app

    # typer carries a copy of click in newer versions, so click's exceptions are found through typer's own.
    usage_error, click_error = cast("tuple[type[Exception], type[Exception]]", typer.BadParameter.__mro__[1:3])
    keep_freed_memory()
    warnings.showwarning = _note  # type: ignore[assignment]
    try:
        result = app(arguments, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _said("interrupted; `polycentric resume RUN` goes on from the last whole round", 130)
    except Mistake as error:
        return _said(str(error), 2)
    except Diverged as error:
        return _said(str(error), 1)
    except BrokenPipeError:  # the reader of our output has gone: nothing to say, nobody to say it to
        sys.stderr.close()
        return 1
    except MemoryError:
        return _said("not enough memory: try fewer clients at once (--block 1) or a smaller model", 2)
    except click_error as error:
        message = str(getattr(error, "format_message", error.__str__)())
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if isinstance(error, usage_error) and context else ""
        return _said(f"{message}{hint}", 2)


def _said(message: str, code: int) -> int:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code


def _note(message: Warning | str, *_: object) -> None:
    print(f"note: {' '.join(str(message).split())}", file=sys.stderr)
