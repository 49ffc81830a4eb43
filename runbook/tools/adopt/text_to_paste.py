"""Writes text to paste: settings from a script for the site file or for params/models.yaml."""

from collections.abc import Mapping

from runbook.params.schema.entries import Model
from runbook.params.yaml12 import nest, write_scalar, write_tree
from runbook.planning.sizes import shape_of, whole
from runbook.tools.adopt.findings import Findings


def site_block(findings: Findings) -> str:
    """Return text that a person can paste into the site file, or an empty string.

    The values are those in the script. Variables that are not set anywhere are left as $NAME.
    """
    tree: dict[str, object] = {}
    lists: dict[str, list[str]] = {}
    for (section, name), value in findings.site_values.items():
        if section in ("modules", "setup"):
            lists.setdefault(section, []).append(str(value))
        else:
            _section(tree, section)[_yaml_key(name)] = value

    texts = [write_tree(_leaves(tree))] if tree else []
    for section, items in lists.items():
        lines = "".join(f"  - {write_scalar(item)}\n" for item in items)
        texts.append(f"{section}:\n{lines}")

    return "".join(texts)


def _section(tree: dict[str, object], path: str) -> dict[str, object]:
    """Return the mapping at a dotted path. Create it if it is missing."""
    section = tree
    for part in path.split("."):
        inner = section.setdefault(part, {})
        assert isinstance(inner, dict), path
        section = inner

    return section


def _yaml_key(name: str) -> str:
    return write_scalar(name)


def _leaves(tree: Mapping[str, object]) -> dict[str, object]:
    """Return a tree with quoted keys, and with each list joined into one line of text."""
    leaves: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            leaves[name] = _leaves({_yaml_key(str(key)): item for key, item in value.items()})
        elif isinstance(value, list):
            leaves[name] = " ".join(map(str, value))
        else:
            leaves[name] = value

    return leaves


def model_entry(
    name: str,
    source: str,
    model: Model,
    findings: Findings,
) -> str:
    """Return an entry for params/models.yaml that describes the model type in the script.

    The text is empty if the script needs no entry.
    """
    if not findings.model_kind:
        return ""
    values: dict[str, object] = model.model_dump() | findings.model_kind
    values |= {"label": name, "source": f"adopted from {source}", "note": "", "training": {}}
    values["parameters"] = 0
    try:
        own_model = Model.model_validate(values)
    except ValueError:
        # The trainer does not support this model type, such as a model with ALiBi
        return ""

    values["parameters"] = whole(shape_of(own_model)).total
    filled = {}
    for key, value in values.items():
        if value not in ("", {}, 0):
            filled[key] = value

    filled |= {key: value for key, value in findings.model_kind.items() if value is False}
    return write_tree(nest({f"{name}.{key}": value for key, value in filled.items()}))
