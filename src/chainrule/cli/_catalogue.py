"""`chainrule image push` and `chainrule search`: components in the catalogue of a registry."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from chainrule.cli._output import make_table, write_error, write_result
from chainrule.deploy.catalogue import Catalogue, CatalogueEntry, Query, push_image
from chainrule.deploy.images import find_engine


def add_push_arguments(parser: ArgumentParser) -> None:
    """The image, and what the catalogue says of it."""
    parser.add_argument(
        "image", metavar="IMAGE", help="Image with its registry: registry.example/team/heat:1.0.0"
    )
    parser.add_argument(
        "--owner", default="", help="Name who answers for the component (default: no one)"
    )
    parser.add_argument(
        "--allow-breaking",
        action="store_true",
        help="Push it also when it breaks callers of the version before",
    )
    parser.add_argument(
        "--engine",
        metavar="ENGINE",
        help="Use podman or docker (default: the one that is installed)",
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="Do not show the progress")
    parser.set_defaults(handler=_push)


def _push(options: Namespace) -> int:
    """The reference by digest goes to standard output."""
    pushed = push_image(
        options.image,
        owner=options.owner,
        allow_breaking=options.allow_breaking,
        engine=find_engine(options.engine),
        on_line=(lambda line: None) if options.quiet else _write_line,
    )
    if not pushed.was_pushed:
        _write_line(f"{pushed.entry.name} {pushed.entry.version} is in the catalogue already.")
    for change in pushed.changes:
        _write_line(f"{'breaks' if change.breaks else 'fine  '} {change.where}: {change.what}")
    facts = {"was_pushed": pushed.was_pushed, **_facts(pushed.entry)}
    write_result(options, facts, f"{pushed.entry.image}\n")
    return 0


def _write_line(line: str) -> None:
    write_error(f"{line}\n")


def add_search_arguments(parser: ArgumentParser) -> None:
    """The catalogue, and what is searched."""
    parser.add_argument(
        "place",
        metavar="REGISTRY[/PREFIX]",
        help="Where images were pushed to: registry.example/team",
    )
    parser.add_argument(
        "--text", default="", help="Find words in names, descriptions and owners (default: any)"
    )
    for side in ("input", "output"):
        parser.add_argument(
            f"--{side}",
            action="append",
            default=[],
            metavar="[PATH:]TYPE",
            help=f"Find components with such an {side}: Float64, pressure, or pressure:Float64; repeat for "
            "more (default: any)",
        )
    parser.add_argument(
        "--endpoint",
        action="append",
        default=[],
        help="Find components with this endpoint, such as jacobian; repeat for more (default: any)",
    )
    parser.add_argument(
        "--differentiable",
        action="store_true",
        help="Count only inputs and outputs that have derivatives",
    )
    parser.add_argument(
        "--all-versions",
        action="store_true",
        help="List older versions too (default: the highest of each)",
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="First write the index anew from all images of the registry",
    )
    parser.set_defaults(handler=_search)


def _search(options: Namespace) -> int:
    catalogue = Catalogue(options.place)
    if options.rebuild:
        catalogue.rebuild()
    query = Query(
        text=options.text,
        inputs=tuple(options.input),
        outputs=tuple(options.output),
        endpoints=tuple(options.endpoint),
        differentiable=options.differentiable,
    )
    found = catalogue.search(query, all_versions=options.all_versions)
    write_result(options, [_facts(entry) for entry in found], lambda: _table(found))
    return 0


def _facts(entry: CatalogueEntry) -> dict[str, Any]:
    return {**asdict(entry), "image": entry.image}


def _table(found: list[CatalogueEntry]) -> Any:
    if not found:
        return "No component fits."
    rows = [
        (
            f"{entry.name}\n{entry.version}",
            f"{entry.description}\n{entry.owner}".strip(),
            _fields(entry, "inputs"),
            _fields(entry, "outputs"),
        )
        for entry in found
    ]
    return make_table("components", ("component", "about", "inputs", "outputs"), rows)


def _fields(entry: CatalogueEntry, side: str) -> str:
    return "\n".join(
        f"{field.path}: {field.type}{' ∂' if field.differentiable else ''}"
        for field in entry.fields
        if field.side == side
    )
