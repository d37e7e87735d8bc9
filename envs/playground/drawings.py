"""How things, agent and signs of a scene look: the description that every picture is drawn by."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

_FILE = files("torchrl_glam.envs.playground") / "drawings.json"

DRAWINGS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
"""``things`` by type, ``agent`` and ``star`` as SVG shapes; ``paints`` of their classes, in
``colours`` by day or of their own."""
