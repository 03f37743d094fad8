"""Trackers: callbacks that pass a run's numbers on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..runs.loop import Callback, Run


class TensorBoard(Callback):
    """Every number of an evaluation as a TensorBoard scalar, over rounds."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def on_evaluation(self, run: Run, row: dict[str, Any]) -> None:
        """One point for each number."""
        for name, value in row.items():
            if value is not None:
                self.writer.add_scalar(name, value, run.state.round)
        self.writer.flush()


def tensorboard(folder: Path) -> TensorBoard:
    """A tracker that writes into a run's folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--track needs TensorBoard: pip install 'polycentric[track]'") from error
    return TensorBoard(SummaryWriter(str(folder / "tensorboard")))
