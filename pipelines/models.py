"""`paraserve models`: what the registry holds, as text or JSON."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paraserve.components.register.card import to_markdown
from paraserve.components.register.registry import Registry


def list_models(registry: Registry) -> list[dict[str, Any]]:
    """Each version of each model, oldest first: {name, version, aliases, registered, auc, logloss, model_uri}."""
    return [row for name in registry.names() for row in _versions(registry, name)]


def _versions(registry: Registry, name: str) -> list[dict[str, Any]]:
    aliases = registry.aliases(name)
    cards = {version: registry.card(name, version) for version in registry.versions(name)}
    return [
        {
            "name": name,
            "version": version,
            "aliases": [alias for alias, target in aliases.items() if target == version],
            "registered": card["registered"],
            "auc": card["metrics"]["auc"],
            "logloss": card["metrics"]["logloss"],
            "model_uri": registry.get(name, version).model_uri,
        }
        for version, card in cards.items()
    ]


def list_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `list_models` as a table."""
    if not rows:
        return "no models are registered here; `paraserve run` registers those that pass its gate"
    cells = [
        (r["name"], r["version"], ", ".join(r["aliases"]), f"{r['auc']:.4f}", f"{r['logloss']:.4f}", r["registered"])
        for r in rows
    ]
    return table(("MODEL", "VERSION", "ALIASES", "AUC", "LOG LOSS", "REGISTERED"), cells)


def only_name(registry: Registry) -> str:
    """The registry's only model. Raises ValueError when there is none, or a choice."""
    names = registry.names()
    if len(names) != 1:
        raise ValueError(f"say which model: {registry.place} has {', '.join(names) or 'none'}")
    return names[0]


def show_model(registry: Registry, name: str) -> dict[str, Any]:
    """A model's versions, and the history of its aliases. Raises ValueError for an unknown model."""
    known = registry.names()
    if name not in known:
        raise ValueError(f"there is no model '{name}' in {registry.place}; it has: {', '.join(known) or 'none'}")
    history = [dataclasses.asdict(event) for event in registry.history(name)]
    return {"name": name, "versions": _versions(registry, name), "history": history}


def model_text(model: Mapping[str, Any]) -> str:
    """`show_model` for people."""
    events = [(e["time"], e["what"], e["version"], e["run_id"], e["reason"]) for e in model["history"]]
    return f"{list_text(model['versions'])}\n\n{table(('TIME', 'EVENT', 'VERSION', 'RUN', 'REASON'), events)}"


def version_text(card: Mapping[str, Any]) -> str:
    """A version's model card for people."""
    return to_markdown(card)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns padded to their widest cell, two spaces apart."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
