"""`chainrule image …` and `chainrule search`: images of components, their catalogue, and containers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chainrule._errors import InputError
from chainrule.cli._output import make_table, write_error, write_result, write_text
from chainrule.deploy.catalogue import Catalogue, CatalogueEntry, Query, push_image
from chainrule.deploy.images import (
    BuildPlan,
    ComponentImage,
    ContainerFacts,
    Engine,
    RunOptions,
    build_image,
    call_image,
    container_log,
    context_hash,
    find_engine,
    list_containers,
    list_images,
    plan_build,
    start_container,
    stop_container,
    write_context,
)


def _add_engine(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        metavar="ENGINE",
        help="Use podman or docker (default: the one that is installed)",
    )


def _add_quiet(parser: ArgumentParser) -> None:
    parser.add_argument("--quiet", "-q", action="store_true", help="Do not show the progress")


def _progress(options: Namespace) -> Callable[[str], None]:
    return (lambda line: None) if options.quiet else _write_line


def add_build_arguments(parser: ArgumentParser) -> None:
    """The component, its image, and how it is built."""
    parser.add_argument(
        "path", metavar="PATH", help="The component's folder, its file, or file.py:name"
    )
    parser.add_argument(
        "--tag",
        "-t",
        action="append",
        default=[],
        help="Name the image name:tag or registry/name:tag; repeat for more (default: the component's name "
        "with its version and with latest)",
    )
    parser.add_argument(
        "--base", metavar="IMAGE", help="Build upon this image (default: python:3.12-slim-bookworm)"
    )
    parser.add_argument(
        "--python",
        metavar="VERSION",
        help="Install this version of Python (default: 3.12, or that of the base image)",
    )
    parser.add_argument("--gpu", action="store_true", default=None, help="Install JAX with CUDA")
    _add_engine(parser)
    parser.add_argument(
        "--platform", help="Build for this platform, such as linux/arm64 (default: this machine's)"
    )
    parser.add_argument(
        "--generate-only",
        action="store_true",
        help="Write the build files and build nothing; needs no engine",
    )
    parser.add_argument(
        "--build-dir",
        type=Path,
        metavar="FOLDER",
        help="Write the build files to this folder and keep them (default: a temporary folder)",
    )
    parser.add_argument("--push", action="store_true", help="Push the image to its registry")
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="id=NAME,src=FILE",
        help="Give the installation a secret, which does not stay in the image; also id=NAME,env=VARIABLE; "
        "repeat for more (default: none)",
    )
    parser.add_argument(
        "--build-env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Set a variable for the installation only, such as UV_INDEX_URL; repeat for more "
        "(default: none)",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="Do not load the component as the last step"
    )
    parser.add_argument(
        "--run-tests",
        action="store_true",
        default=None,
        help="Run its regression tests in the image as the last step",
    )
    parser.add_argument(
        "--check-gradients",
        metavar="PAYLOAD",
        help="Check its gradients in the image, at the payload in this file of the component's folder "
        "(default: no check)",
    )
    _add_quiet(parser)
    parser.set_defaults(handler=_build)


def _build(options: Namespace) -> int:
    """Build; the names of the image go to standard output."""
    plan = plan_build(
        options.path,
        base=options.base,
        python=options.python,
        gpu=options.gpu,
        platform=options.platform,
        build_env=variables("--build-env", options.build_env) or None,
        check=False if options.no_check else None,
        run_tests=options.run_tests,
        check_gradients=options.check_gradients,
    )
    if options.generate_only:
        return _generate(plan, options)
    built = build_image(
        plan,
        tags=options.tag,
        engine=find_engine(options.engine),
        context=options.build_dir,
        secrets=options.secret,
        push=options.push,
        on_line=_progress(options),
    )
    if not built.was_built:
        _write_line(f"Nothing has changed; {built.tags[0]} was not built again.")
    facts = {"tags": built.tags, "was_built": built.was_built, "labels": dict(built.labels)}
    write_result(options, facts, _lines(built.tags))
    return 0


def _generate(plan: BuildPlan, options: Namespace) -> int:
    folder = options.build_dir or Path(f"{plan.settings.name}-image")
    write_context(plan, folder)
    facts = {"context": str(folder), "hash": context_hash(folder)[:12]}
    write_result(options, facts, f"{folder}\n")
    return 0


def variables(flag: str, entries: Iterable[str]) -> dict[str, str]:
    """What a repeated option of the form NAME=VALUE gives."""
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not (name and equals):
            raise InputError(f"{flag} takes NAME=VALUE; found {entry!r}.", code="bad_option")
        found[name] = value
    return found


def _write_line(line: str) -> None:
    write_error(f"{line}\n")


def add_run_arguments(parser: ArgumentParser) -> None:
    """The image, what it is given, and maybe a call."""
    parser.add_argument(
        "image", metavar="IMAGE", help="An image that `chainrule image build` or Tesseract made"
    )
    parser.add_argument(
        "call",
        metavar="CALL",
        nargs="*",
        help="One call, such as: apply '{\"inputs\": {…}}' (default: serve until `chainrule image stop`)",
    )
    parser.add_argument(
        "--gpus",
        action="append",
        help="Give it all GPUs (all) or one device; repeat for more (default: none)",
    )
    parser.add_argument(
        "--memory", "-m", help="Limit its memory, such as 2g (default: the engine's limit)"
    )
    parser.add_argument(
        "--volume",
        "-v",
        action="append",
        default=[],
        metavar="HERE:THERE[:rw]",
        help="Mount a folder, read-only without :rw; repeat for more (default: none)",
    )
    parser.add_argument(
        "--env",
        "-e",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Set a variable; repeat for more (default: none)",
    )
    parser.add_argument(
        "--network", help="Use this network of the engine, or host (default: the engine's)"
    )
    parser.add_argument(
        "--user", metavar="UID[:GID]", help="Run as this user (default: the image's)"
    )
    parser.add_argument(
        "--input-path",
        "-i",
        type=Path,
        metavar="FOLDER",
        help="Let payloads name files in this folder (default: none)",
    )
    parser.add_argument(
        "--output-path",
        "-o",
        type=Path,
        metavar="FOLDER",
        help="Write the files of runs to this folder (default: none is kept)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="Answer calls in N processes"
    )
    parser.add_argument(
        "--startup-timeout",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="Give up when it does not answer after this many seconds",
    )
    _add_engine(parser)
    parser.set_defaults(handler=_run)


def _run(options: Namespace) -> int:
    """Make the call, or start a server and print where it is."""
    engine = find_engine(options.engine)
    given = RunOptions(
        gpus=options.gpus,
        memory=options.memory,
        volumes=options.volume,
        env=variables("--env", options.env),
        network=options.network,
        user=options.user,
        input_path=options.input_path,
        output_path=options.output_path,
        workers=options.workers,
    )
    if options.call:
        return call_image(options.image, options.call, given, engine=engine)
    container = start_container(
        options.image,
        given,
        engine=engine,
        owned=False,
        startup_timeout=options.startup_timeout,
    )
    facts = {"container": container.name, "url": container.url, "token": container.token}
    lines = [f"{name}: {value}" for name, value in facts.items() if value is not None]
    write_result(options, facts, _lines(lines))
    return 0


def add_push_arguments(parser: ArgumentParser) -> None:
    """The image, and what the catalogue says of it."""
    parser.add_argument(
        "image", metavar="IMAGE", help="Image with its registry: registry.example/team/heat:1.0.0"
    )
    parser.add_argument(
        "--owner", default="", help="Name the owner of the component (default: none)"
    )
    parser.add_argument(
        "--allow-breaking",
        action="store_true",
        help="Push it also when it breaks callers of the version before",
    )
    _add_engine(parser)
    _add_quiet(parser)
    parser.set_defaults(handler=_push)


def _push(options: Namespace) -> int:
    """The reference by digest goes to standard output."""
    pushed = push_image(
        options.image,
        owner=options.owner,
        allow_breaking=options.allow_breaking,
        engine=find_engine(options.engine),
        on_line=_progress(options),
    )
    if not pushed.was_pushed:
        _write_line(f"{pushed.entry.name} {pushed.entry.version} is in the catalogue already.")
    for change in pushed.changes:
        _write_line(f"{'breaks' if change.breaks else 'fine  '} {change.where}: {change.what}")
    facts = {"was_pushed": pushed.was_pushed, **_entry_facts(pushed.entry)}
    write_result(options, facts, f"{pushed.entry.image}\n")
    return 0


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
    write_result(
        options,
        [_entry_facts(entry) for entry in found],
        lambda: _catalogue_table(found) if found else _why_none(catalogue, options.place),
    )
    return 0


def _why_none(catalogue: Catalogue, place: str) -> str:
    if catalogue.entries():
        return "No component fits."
    said = f"No component was pushed to {place} with `chainrule image push`."
    if "/" in place:
        return said
    return f"{said} Images below a prefix are found with it: chainrule search {place}/PREFIX"


def _entry_facts(entry: CatalogueEntry) -> dict[str, Any]:
    return {**asdict(entry), "image": entry.image}


def _catalogue_table(found: list[CatalogueEntry]) -> Any:
    rows = [
        (
            f"{entry.name}\n{entry.version}",
            f"{entry.description}\n{entry.owner}".strip(),
            _entry_fields(entry, "inputs"),
            _entry_fields(entry, "outputs"),
        )
        for entry in found
    ]
    return make_table("components", ("component", "about", "inputs", "outputs"), rows)


def _entry_fields(entry: CatalogueEntry, side: str) -> str:
    return "\n".join(
        f"{field.path}: {field.type}{' ∂' if field.differentiable else ''}"
        for field in entry.fields
        if field.side == side
    )


def add_list_arguments(parser: ArgumentParser) -> None:
    """The engine."""
    columns = ("component", "version", "image", "size", "kind")
    _add_listing(parser, "images", columns, lambda engine: map(_image_row, list_images(engine)))


def _image_row(image: ComponentImage) -> dict[str, str]:
    return {
        "component": image.component,
        "version": image.version,
        "image": " ".join(image.tags),
        "size": f"{image.size_bytes / 1e6:.0f} MB",
        "kind": "chainrule" if image.is_native else "tesseract",
    }


def add_ps_arguments(parser: ArgumentParser) -> None:
    """The engine."""
    columns = ("container", "component", "state", "port", "until")
    _add_listing(
        parser, "containers", columns, lambda engine: map(_container_row, list_containers(engine))
    )


def _container_row(facts: ContainerFacts) -> dict[str, str]:
    return {
        "container": facts.name,
        "component": facts.component,
        "state": facts.state,
        "url": facts.url,
        "port": facts.url.rpartition(":")[2],
        "until": "its process ends" if facts.owned else "stopped",
    }


def add_logs_arguments(parser: ArgumentParser) -> None:
    """The container, and how much of its output."""
    parser.add_argument(
        "container", metavar="CONTAINER", help="Name of the container in `chainrule image ps`"
    )
    parser.add_argument(
        "--tail", type=int, metavar="LINES", help="Print only the last lines (default: all)"
    )
    _add_engine(parser)
    parser.set_defaults(handler=_logs)


def _logs(options: Namespace) -> int:
    write_text(container_log(find_engine(options.engine), options.container, options.tail))
    return 0


def add_stop_arguments(parser: ArgumentParser) -> None:
    """The containers."""
    parser.add_argument(
        "containers",
        metavar="CONTAINER",
        nargs="*",
        help="Names of containers in `chainrule image ps`",
    )
    parser.add_argument("--all", action="store_true", help="Stop every container of a component")
    _add_engine(parser)
    parser.set_defaults(handler=_stop)


def _stop(options: Namespace) -> int:
    engine = find_engine(options.engine)
    known = {facts.name for facts in list_containers(engine)}
    wanted = sorted(known) if options.all else options.containers
    if not wanted and not options.all:
        raise InputError("Name the containers to stop, or pass --all.", code="bad_option")
    # All names are checked before any container is stopped.
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(
            f"There is no container {unknown[0]!r} of a component; nothing was stopped. "
            "`chainrule image ps` shows them.",
            code="container_missing",
        )
    for name in wanted:
        stop_container(engine, name)
    write_result(options, {"stopped": wanted}, _lines(wanted))
    return 0


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _add_listing(
    parser: ArgumentParser,
    title: str,
    columns: Sequence[str],
    find: Callable[[Engine], Iterable[Mapping[str, str]]],
) -> None:
    """A command that lists what `find` finds: some columns as a table, or all of it as JSON."""

    def listing(options: Namespace) -> int:
        rows = list(find(find_engine(options.engine)))
        cells = [[row[column] for column in columns] for row in rows]
        table = (lambda: make_table(title, columns, cells)) if rows else f"No {title}.\n"
        write_result(options, rows, table)
        return 0

    _add_engine(parser)
    parser.set_defaults(handler=listing)
