"""The compiled `steps.c`: it is compiled when polycentric is installed, where there is a C compiler.

Without it, or on a processor without AVX-512, steps are rows of torch's operators: slower, and equal to rounding.
"""

from __future__ import annotations

import ctypes
import hashlib
import warnings
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SOURCE, COMPILED = HERE / "steps.c", HERE / "steps.compiled"


@cache
def library() -> ctypes.CDLL | None:
    """What was compiled; None where there is nothing, or nothing that suits."""
    if not COMPILED.exists():
        return None
    try:
        found = ctypes.CDLL(str(COMPILED))
        made_of, source = ctypes.c_char_p.in_dll(found, "polycentric_source").value, digest()
    except (OSError, ValueError) as error:
        warnings.warn(f"{COMPILED} cannot be used ({error}); install polycentric again", stacklevel=2)
        return None
    if made_of != source.encode():
        warnings.warn(f"{COMPILED} was compiled from another version; install polycentric again", stacklevel=2)
        return None
    return found if found.polycentric_suits() else None


def digest() -> str:
    """Of the source, which what is compiled carries along."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()
