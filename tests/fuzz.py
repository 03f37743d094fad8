"""Words and values of all sorts, for what must refuse them by a UsageError and nothing else."""

import warnings

from hypothesis import settings, strategies as st

from polycentric.errors import UsageError
from polycentric.methods import METHODS
from polycentric.runs.recipes import parameters

FUZZ = settings(max_examples=300)

words = st.text(max_size=12)
FRAGMENTS = "uniform prox momentum private krum ( ) , = n share mu 0.1 1 -1 nan inf 1e999 all ' \" . é true".split()
pieces = st.lists(
    st.sampled_from([*FRAGMENTS, " ", "\n", "\0", "9" * 20]),
    max_size=10,
).map("".join)
scalars = st.one_of(words, pieces, st.integers(), st.floats(), st.booleans(), st.none())
keys = st.one_of(
    words,
    st.sampled_from(sorted({k for m in METHODS for k in parameters(m)})),
    st.sampled_from(["select.n", "center.lr", "terms.mu", "cut.patterns", "lr.x", "select.", ".", "a.b.c", "name"]),
)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=5
)


def only_mistakes(call, *arguments):
    """Runs it; whatever is refused is refused by a UsageError that says something."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a method may warn of what it was asked for
        try:
            call(*arguments)
        except UsageError as wrong:
            assert str(wrong)
