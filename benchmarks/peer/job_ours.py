"""The command with timers around its parts, which are no part of it: where the time of a run goes.

    python job_ours.py run fedavg --data mnist ...

As the last line of the errors: seconds of every part in JSON, from the moment that END_TO_END_BEGAN names, which is
when the process was started.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

seconds: dict[str, float] = {}
open_: list[float] = []  # seconds of parts within the part that is open
BEGAN = float(os.environ.get("END_TO_END_BEGAN", time.time()))


def clocked(holder: Any, name: str, part: str) -> None:
    """What a function takes counts for a part, without the parts within it."""
    inner: Callable[..., Any] = getattr(holder, name)

    @functools.wraps(inner)
    def outer(*args: Any, **more: Any) -> Any:
        open_.append(0.0)
        began = time.perf_counter()
        try:
            return inner(*args, **more)
        finally:
            took = time.perf_counter() - began
            seconds[part] = seconds.get(part, 0.0) + took - open_.pop()
            if open_:
                open_[-1] += took

    setattr(holder, name, outer)


def main() -> None:
    seconds["interpreter"] = time.time() - BEGAN
    began = time.perf_counter()
    import torch  # noqa: F401

    seconds["import torch"] = time.perf_counter() - began
    began = time.perf_counter()
    import polycentric.cli
    from polycentric.runs import outputs, start
    from polycentric.runs.loop import Run

    seconds["import polycentric"] = time.perf_counter() - began
    clocked(start, "load_data", "data")
    clocked(start, "prepared", "set-up")
    clocked(Run, "_round", "rounds")
    clocked(Run, "_evaluate", "evaluation")
    clocked(Run, "_finish", "last scores and fine-tuning")
    clocked(outputs.Recorder, "on_stop", "files")
    clocked(outputs.Recorder, "on_end", "files")
    try:
        polycentric.cli.main()
    finally:
        seconds["all else"] = time.time() - BEGAN - sum(seconds.values())
        print(json.dumps(seconds), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
