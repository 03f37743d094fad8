"""Runs one of Flower's programs, and ends when it does, or when whoever started it does.

    python -P starter.py superlink|supernode ARGUMENTS

Flower's supernode may leave its main thread while others keep the process alive, of no use to anybody; and neither of
the two notices when the process that started them is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module

PROGRAMS = {
    "superlink": ("flwr.superlink.cli.flower_superlink", "flower_superlink"),
    "supernode": ("flwr.supernode.cli.flower_supernode", "flower_supernode"),
}


def end_with_parent() -> None:
    """Wait until standard input closes, then end at once."""

    def wait() -> None:
        while os.read(0, 1 << 12):
            pass
        os._exit(70)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """One of the two."""
    end_with_parent()
    module, function = PROGRAMS[sys.argv[1]]
    sys.argv = [f"flower-{sys.argv[1]}", *sys.argv[2:]]
    code = 1
    try:
        getattr(import_module(module), function)()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
