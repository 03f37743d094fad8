"""What every client would have come to alone: the same training, on the same examples, with nobody else."""

from __future__ import annotations

from dataclasses import fields

from .grid import known
from .loop import Run, trainer_of
from .recipes import BY_METHODS
from .start import Given, prepared


def trained_alone(run: Run) -> Run:
    """NoFed with the training of a run's method, over as many rounds."""
    own, asked = known("nofed", run.settings.set), run.settings
    if train := trainer_of(run.method):  # also what the method's clients do by default: so many steps, perhaps
        trains = {f.name: getattr(train, f.name) for f in fields(train) if f.name not in (*BY_METHODS, "terms")}
        own = own | trains
        del own["epochs" if train.steps else "steps"]
    here = {"executor": run.clients.executor, "block": run.clients.block}  # as a run that is resumed has it
    lonely = asked.changed(method="nofed", set=own, patience=None, fine_tune=0, alone=False, unseen=False, **here)
    return prepared(lonely, Given(federation=run.federation), run.clients.ranks).go()
