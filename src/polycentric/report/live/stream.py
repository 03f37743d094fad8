"""Lines of a run's metrics as they are written, as server-sent events.

The id of an event is the place in the file behind its line, in bytes. A browser that was cut off says the last id that
it has seen, and is sent what comes behind it: no line is lost, none is sent twice. A run that is resumed writes its
file anew, as far as its checkpoint; where the file is shorter than the place, everything begins again (`reset`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from ...language.files import opened

POLL = 0.3  # seconds between two looks at a file
QUIET = 15.0  # seconds after which a sign of life is sent
PIECE = 1 << 20  # bytes that are read at once

Gone = Callable[[], Awaitable[bool]]


def event(kind: str, data: str, id: int | None = None) -> str:
    """One server-sent event; its data are one line."""
    return (f"id: {id}\n" if id is not None else "") + f"event: {kind}\ndata: {data}\n\n"


def read_from(path: Path, place: int) -> tuple[list[tuple[int, str]], bool]:
    """Whole lines behind a place, each with the place behind it; and whether the file is shorter than the place."""
    try:
        with opened(path) as file:
            if os.fstat(file.fileno()).st_size < place:
                return [], True
            file.seek(place)
            text = file.read(PIECE)
    except OSError:
        return [], place > 0
    lines = []
    for line in text.split(b"\n")[:-1]:
        place += len(line) + 1
        lines.append((place, line.decode("utf-8", "replace")))
    return lines, False


async def lines_of(path: Path, place: int, status: Callable[[], str], gone: Gone) -> AsyncIterator[str]:
    """Events of one run: its lines, and when its status changes."""
    quiet, known = 0.0, ""
    while not await gone():
        lines, shorter = await asyncio.to_thread(read_from, path, place)
        if shorter:
            place = 0
            yield event("reset", "{}", 0)
            continue
        for place, line in lines:
            yield event("line", line, place)
        if (now := await asyncio.to_thread(status)) != known:
            yield event("status", f'"{now}"') if known else ""
            known = now
        quiet = 0.0 if lines else quiet + POLL
        if quiet >= QUIET:
            quiet = 0.0
            yield ": still here\n\n"
        if not lines:
            await asyncio.sleep(POLL)


async def rows_of_list(read: Callable[[], str], gone: Gone) -> AsyncIterator[str]:
    """Events of the list of runs: all of it, whenever something in it changes."""
    known, quiet = "", 0.0
    while not await gone():
        now = await asyncio.to_thread(read)
        if now != known:
            known, quiet = now, 0.0
            yield event("rows", now)
        quiet += POLL
        if quiet >= QUIET:
            quiet = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(POLL)
