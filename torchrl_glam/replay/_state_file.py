"""Saving into a folder what a ``state_dict`` of tensors, numbers and text says."""

from __future__ import annotations

from pathlib import Path

import torch


class StateFile:
    """``dumps`` and ``loads`` as replay buffers call them, by way of the class's ``state_dict``.

    To be named before the TorchRL class, whose own are replaced. Loading executes no code from the
    file.
    """

    _file: str  # its name within the folder

    def dumps(self, path: str | Path) -> None:
        """Writes the state into the folder ``path``."""
        path = Path(path)
        path.mkdir(exist_ok=True)
        torch.save(self.state_dict(), path / self._file)

    def loads(self, path: str | Path) -> None:
        """Reads the state from the folder ``path``."""
        self.load_state_dict(torch.load(Path(path) / self._file, weights_only=True))
