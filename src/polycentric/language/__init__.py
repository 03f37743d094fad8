"""One language for parts: `uniform(n=10)` in a command, a TOML file and in Python texts means one thing everywhere.

words.py     text to calls: names, settings, parts within parts
registry.py  what a kind of part may be called, and what builds it
build.py     calls to parts, with types
spell.py     parts back to words, and the files they were read from
"""

from .build import LARGEST, part_of, value_of
from .registry import entries, kinds, register
from .spell import NoWords, files_of, spell
from .words import settings_in

__all__ = ["LARGEST", "NoWords", "entries", "files_of", "kinds", "part_of", "register", "settings_in", "spell"]
__all__ += ["value_of"]
