"""Whether a run resumes with the configuration that it had."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any


def require_same_config(
    saved: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str], path: Path
) -> None:
    """Refuses another configuration than that of the checkpoint ``path``, by ValueError.

    Keys ``allowed`` may differ; dots lead into nested dicts, and a key stands for all below it.
    """
    before, after = _flat(saved), _flat(now)
    changed = [
        f"{key} was {before.get(key, 'not set')}, is {after.get(key, 'not set')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in allowed)
    ]
    if changed:
        raise ValueError(
            f"config differs from that of {str(path)!r}: {'; '.join(changed)}. Resume with the "
            "same values, or start a new run in another folder"
        )


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return dotted keys and their values as JSON text, in which a tuple equals a list."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = json.dumps(value, default=str)
    return flat
