"""Objects as YAML, in one file or in a folder, and the reference of an image by its digest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from chainrule._errors import StorageError, TransportError
from chainrule.deploy._registry import Reference, Registry

_NOT_TEXT = {"yes", "no", "on", "off", "true", "false", "null"}


class _Dumper(yaml.SafeDumper):
    """Every text in quotes, but for keys that are plain words.

    PyYAML leaves `y`, `1e3` and `0o7` bare, which kubectl, a reader of YAML 1.1, takes for a truth value or
    for numbers.
    """

    def ignore_aliases(self, data: Any) -> bool:
        """An object that occurs twice is written twice."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


def _represent_mapping(dumper: yaml.SafeDumper, mapping: Mapping[str, Any]) -> yaml.Node:
    node = dumper.represent_mapping("tag:yaml.org,2002:map", mapping)
    for key, _ in node.value:
        if re.fullmatch("[A-Za-z]{2,}", key.value) and key.value.lower() not in _NOT_TEXT:
            key.style = None
    return node


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(dict, _represent_mapping)


def to_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Objects as one YAML file.

    Args:
        objects: what `manifests` returns.

    Example:
        >>> print(to_yaml([{"kind": "Service", "metadata": {"labels": {"on": "y"}}}]))
        ---
        kind: "Service"
        metadata:
          labels:
            "on": "y"
        <BLANKLINE>
    """
    return "".join(
        "---\n" + yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=100) for each in objects
    )


def write_folder(objects: Iterable[Mapping[str, Any]], folder: str | Path) -> list[Path]:
    """Write a file for each object, and the `kustomization.yaml` that lists them.

    Args:
        objects: what `manifests` returns.
        folder: where the files go; it is made where it is missing.

    Returns:
        The files, `kustomization.yaml` last.

    Raises:
        StorageError: a file cannot be written.
    """
    folder = Path(folder)
    contents = {
        f"{each['kind'].lower()}-{each['metadata']['name']}.yaml": [each] for each in objects
    }
    listed = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(contents),
    }
    contents["kustomization.yaml"] = [listed]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(to_yaml(content), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write {folder}: {error.strerror}.") from error
    return [folder / name for name in contents]


def pinned_image(reference: str) -> str:
    """The reference of an image by its digest, which its registry is asked for.

    Args:
        reference: name of an image in a registry.

    Raises:
        CapabilityError: the registry does not have it, or refuses (`not_in_registry`, `registry_denied`).
        TransportError: the registry cannot be reached (`unreachable`).
    """
    if "@sha256:" in reference:
        return reference
    parsed = Reference.parse(reference)
    try:
        return f"{parsed.name}@{Registry(parsed.host).digest(parsed)}"
    except TransportError as error:
        raise TransportError(
            f"{error.message} Without it, name the image by its digest (…@sha256:…), or write the tag with "
            "--allow-tag.",
            code=error.code,
            details=error.details,
        ) from error
