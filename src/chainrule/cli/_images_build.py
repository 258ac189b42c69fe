"""`chainrule image build`: an image from a component's folder."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path

from chainrule._errors import InputError
from chainrule.deploy.images import (
    BuildPlan,
    build_image,
    context_hash,
    find_engine,
    plan_build,
    write_context,
)


def add_arguments(parser: ArgumentParser) -> None:
    """The component, its image, and how it is built."""
    parser.add_argument(
        "path", metavar="PATH", help="the component's folder, its file, or file.py:name"
    )
    parser.add_argument(
        "--tag",
        "-t",
        action="append",
        default=[],
        help="name:tag or registry/name:tag; repeat for more. By default version and latest",
    )
    parser.add_argument("--base", help="image to build upon; python:3.12-slim-bookworm by default")
    parser.add_argument("--python", metavar="VERSION", help="version of Python, such as 3.12")
    parser.add_argument("--gpu", action="store_true", default=None, help="with CUDA for JAX")
    parser.add_argument("--engine", metavar="ENGINE", help="podman or docker")
    parser.add_argument("--platform", help="of the image, such as linux/arm64")
    parser.add_argument(
        "--generate-only", action="store_true", help="write the build files; needs no engine"
    )
    parser.add_argument("--build-dir", type=Path, help="folder for the build files; kept")
    parser.add_argument("--push", action="store_true", help="send the image to its registry")
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="id=NAME,src=FILE",
        help="or id=NAME,env=VARIABLE: for the installation only, never in the image",
    )
    parser.add_argument(
        "--build-env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="variable for the installation only, such as UV_INDEX_URL",
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not load the component as the last step"
    )
    parser.add_argument(
        "--run-tests",
        action="store_true",
        default=None,
        help="run its regression files in the image",
    )
    parser.add_argument(
        "--check-gradients",
        metavar="PAYLOAD",
        help="check its gradients in the image, at the payload in this file of the folder",
    )
    parser.add_argument(
        "--quiet", "-q", action="store_true", help="do not show the engine's progress"
    )


def run(options: Namespace) -> int:
    """Build; the names of the image go to standard output."""
    plan = plan_build(
        options.path,
        base=options.base,
        python=options.python,
        gpu=options.gpu,
        platform=options.platform,
        build_env=_variables(options.build_env) or None,
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
        on_line=_nothing if options.quiet else _show,
    )
    if not built.was_built:
        _show(f"{built.tags[0]} is there already: nothing has changed.")
    facts = {"tags": built.tags, "was_built": built.was_built, "labels": dict(built.labels)}
    text = json.dumps(facts) if options.json else "\n".join(built.tags)
    sys.stdout.write(f"{text}\n")
    return 0


def _generate(plan: BuildPlan, options: Namespace) -> int:
    folder = options.build_dir or Path(f"{plan.settings.name}-image")
    write_context(plan, folder)
    facts = {"context": str(folder), "hash": context_hash(folder)[:12]}
    sys.stdout.write(f"{json.dumps(facts) if options.json else folder}\n")
    return 0


def _variables(entries: Iterable[str]) -> dict[str, str]:
    pairs = [entry.partition("=") for entry in entries]
    if not all(name and equals for name, equals, _ in pairs):
        raise InputError("--build-env takes NAME=VALUE.", code="bad_option")
    return {name: value for name, _, value in pairs}


def _show(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _nothing(line: str) -> None:
    pass
