"""How it was made: settings, versions, fingerprints, and what to type to have it again."""

from __future__ import annotations

import json
from typing import Any

from ...runs.settings import Settings, command_of
from . import parts
from .parts import Part
from .seen import Seeds, Sight

VERSIONS = ("polycentric", "python", "torch", "numpy", "system", "device", "executor", "threads", "precision")


def made(sight: Sight) -> Part | None:
    """For every label: the command, the settings as they were resolved, versions and the data's fingerprint."""
    commands, settings, facts = dict[str, Part](), dict[str, Part](), dict[str, Part]()
    for group in sight.groups:
        commands[group.label] = {"kind": "code", "title": "to run it again", "text": again(group)}
        facts[group.label] = parts.facts(_facts(group))
        text = json.dumps(group.config, indent=2, default=str)
        settings[group.label] = {"kind": "code", "title": "config.json, resolved", "text": text, "folded": True}
    said = "What numbers depend on, and what to type to have them again."
    return parts.panel("reproduce", "How it was made", said, *map(parts.by_run, (commands, facts, settings)))


def again(group: Seeds) -> str:
    """The command that runs a label's runs again, seed by seed."""
    if given := group.config.get("given"):
        names = ", ".join(map(str, given)) if isinstance(given, list) else str(given)
        return f"# started in Python with objects that cannot be written as text: {names}"
    found_out = ("device", "executor", "block")  # as they were resolved: another machine may have others
    free = {name: Settings.model_fields[name].default for name in found_out}
    values = [group.settings.changed(**free, seed=int(s)) for s in _seeds(group)]
    return "\n".join(map(command_of, values))


def _seeds(group: Seeds) -> list[Any]:
    from ...runs.folder import Folder

    return [Folder(folder).read_values().get("seed", 0) for folder in group.folders]


def _facts(group: Seeds) -> list[tuple[str, Any]]:
    env = group.environment
    found = [
        ("seeds", ", ".join(map(str, _seeds(group)))),
        ("model", group.settings.model or "by the shape of the data"),
    ]
    found += [("parameters", f"{env['parameters']:,}")] if isinstance(env.get("parameters"), int) else []
    prints = dict.fromkeys(str(s.get("fingerprint")) for s in group.summaries if s.get("fingerprint"))
    found += [("fingerprint of the data", ", ".join(prints) or str(env.get("fingerprint", "-")))]
    found += [(name, env[name]) for name in VERSIONS if name in env]
    took = sum(s.get("seconds", 0) for s in group.summaries)
    found += [("seconds of all runs", f"{took:,.1f}")] if took else []
    found += [("folders", ", ".join(str(folder) for folder in group.folders))]
    return found
