"""A center between organisations: wait for nodes, agree on terms, run, go on after whatever happened.

The run itself is the one of `runs.loop`; only who answers differs. What every exchange came to stands in the run's
folder (`exchanges.jsonl`), written before the round counts, so a center that was killed knows which replies were used.
"""

from __future__ import annotations

from collections.abc import Callable

from ..runs.loop import Run
from ..runs.settings import Settings
from .terms import Terms

NODES_OWN = (
    "data",
    "partition",
    "clients",
    "data_seed",
    "valid",
    "standardise",
    "device",
    "workers",
    "checkpoint_every",
)


def terms_of(made: Run, name: str, settings: Settings) -> Callable[[int], Terms]:
    """Of a prepared run: what each client, by its number, is told."""
    federation, train = made.federation, made.federation.train.sizes
    words = settings.model_dump(mode="json", exclude_defaults=True, exclude=set(NODES_OWN))

    def terms(client: int) -> Terms:
        return Terms(
            run=name,
            client=client,
            clients=federation.n_clients,
            able=int((train > 0).sum()),
            largest=int(train.max()),
            classes=list(federation.classes),
            settings=words,
        )

    return terms
