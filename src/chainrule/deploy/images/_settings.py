"""What a component's folder says about its image: `component.yaml`, or the peer's `tesseract_config.yaml`.

Both are read into one frozen `ImageSettings`, so that the other modules do not depend on the kind of file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from chainrule._errors import DefinitionError, InputError
from chainrule.runtime.internal import read_mapping

_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A value that is written unquoted into a netrc file or a shell command has to be one word.
_WORD = r"^[A-Za-z0-9._@+-]+$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Credential(_Strict):
    """A login for a package index or a Git host; the password is a build secret.

    Attributes:
        host: name of the host.
        secret_id: which secret of the build is the password.
        username: user name of the login.
    """

    host: str = Field(pattern=_WORD)
    secret_id: str = Field(pattern=_WORD)
    username: str = Field(default="__token__", pattern=_WORD)


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How the image of one component is made.

    Attributes:
        name: name of the image.
        version: of the component; a tag of the image unless `unknown`.
        description: one line of text.
        base: the image to build upon; Debian or Ubuntu, with or without Python.
        python: version of the interpreter, such as `3.12`; the base's own when not given.
        requirements: file in the component's folder; the first of the usual names when not given. A YAML
            file is an environment of conda.
        extras: extras of Chainrule that the component needs, such as `jax`.
        apt: system packages.
        package_data: pairs of a source, relative to the component's folder, and a place in the image.
        env: variables of the image.
        build_env: variables while packages are installed; not in the image.
        steps: further lines of the Containerfile, run as root in `/component`.
        secrets: names of build secrets that the installation needs.
        credentials: logins made from such secrets.
        inherit_packages: use Python packages of the base image too.
        platform: of the image, such as `linux/arm64`; this machine's when not given.
        gpu: install CUDA for JAX, and ask for NVIDIA devices at run time.
        check: load the component as the last step of the build.
        run_tests: run its regression tests in that step.
        check_gradients: check its gradients in that step, at the payload in this file.
        metadata: any data, kept as a label.
        is_peer: the folder is written for tesseract-core.
    """

    name: str
    version: str = "unknown"
    description: str = ""
    base: str | None = None
    python: str | None = None
    requirements: str | None = None
    extras: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    package_data: tuple[tuple[str, str], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    build_env: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    credentials: tuple[Credential, ...] = ()
    inherit_packages: bool = False
    platform: str | None = None
    gpu: bool = False
    check: bool = True
    run_tests: bool = False
    check_gradients: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    is_peer: bool = False

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(
                f"{self.name!r} cannot be the name of an image: use lower-case letters and digits, with "
                "single '.', '_' or '-' between them. Set `name` in component.yaml.",
                code="bad_name",
            )
        if self.python is not None and not re.fullmatch(r"3\.\d+(\.\d+)?", self.python):
            raise InputError(
                f"Expected a version of Python such as 3.12; found {self.python!r}.",
                code="bad_option",
            )
        for variable in (*self.env, *self.build_env):
            if not _VARIABLE.fullmatch(variable):
                raise InputError(
                    f"{variable!r} cannot be the name of a variable.", code="bad_option"
                )

    @property
    def base_image(self) -> str:
        """The image to build upon, by default the slim official one of the wanted Python."""
        return self.base or f"docker.io/library/python:{self.python or '3.12'}-slim-bookworm"

    @property
    def all_secrets(self) -> tuple[str, ...]:
        """Every secret that the installation is given."""
        return tuple(dict.fromkeys([*self.secrets, *(c.secret_id for c in self.credentials)]))


def _build_section() -> type[BaseModel]:
    """The model of the section `build` of `component.yaml`: fields of `ImageSettings`, with their defaults.

    Name, version and description are beside the section; `is_peer` is not for users.
    """
    types = get_type_hints(ImageSettings)
    given: dict[str, Any] = {
        f.name: (types[f.name], Field(default_factory=dict) if f.default is MISSING else f.default)
        for f in fields(ImageSettings)
        if f.name not in ("name", "version", "description", "is_peer")
    }
    # YAML reads 3.12 as a number.
    given["python"] = (Annotated[str | None, BeforeValidator(_number_as_text)], None)
    return create_model("Build", __base__=_Strict, **given)


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, float) else value


class _PeerRequirements(_Strict):
    provider: Literal["uv-pip", "python-pip"] = "uv-pip"
    python_version: str | None = None
    requirements_file: str = "tesseract_requirements.txt"


class _PeerConda(_Strict):
    provider: Literal["conda"]
    # The environment file says which Python; it always has this name.
    python_version: ClassVar[None] = None
    requirements_file: ClassVar[str] = "tesseract_environment.yaml"


class _PeerBuild(_Strict):
    """`build_config` of `tesseract_config.yaml`; `python_version` stood here until 1.11."""

    base_image: str | None = None
    target_platform: str = "native"
    extra_packages: tuple[str, ...] = ()
    package_data: tuple[tuple[str, str], ...] | None = None
    custom_build_steps: tuple[str, ...] | None = None
    inherit_base_image_packages: bool = False
    skip_checks: bool = False
    build_env: dict[str, str] = {}
    host_credentials: tuple[Credential, ...] = ()
    python_version: str | None = None
    requirements: _PeerRequirements | _PeerConda = _PeerRequirements()


class _PeerConfig(_Strict):
    name: str
    version: str = "unknown"
    description: str = ""
    env: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    build_config: _PeerBuild | None = None


Changes = Mapping[tuple[str, ...], Any]


def read_settings(
    folder: Path, *, changes: Changes | None = None, **overrides: Any
) -> ImageSettings:
    """The settings of the component in a folder.

    Args:
        folder: folder of the component.
        changes: values to put into the file's content before it is read, by their keys from the top.
        **overrides: fields of `ImageSettings` that win over the file; `None` leaves them.

    Raises:
        DefinitionError: the file is malformed (`bad_project_file`).
        InputError: a name or a version cannot be used.
    """
    own, peer = folder / "component.yaml", folder / "tesseract_config.yaml"
    if own.is_file():
        facts = _from_own_file(own, changes or {})
    elif peer.is_file():
        facts = _from_peer_file(peer, changes or {})
    else:
        facts = {}
    facts["name"] = facts.get("name", folder.resolve().name).lower()
    given = {name: value for name, value in overrides.items() if value is not None}
    return ImageSettings(**facts | given)


def settings_schema(file_name: str) -> dict[str, Any]:
    """The JSON Schema of a project file, for editors.

    Args:
        file_name: `component.yaml` or `tesseract_config.yaml`.
    """
    if file_name == "tesseract_config.yaml":
        schema = _PeerConfig.model_json_schema()
    else:
        # What else the file says (the components in a folder) is read where components are loaded.
        facts: dict[str, Any] = dict.fromkeys(("name", "version", "description"), (str, ""))
        facts["build"] = (_build_section() | None, None)
        own = create_model("Component", **facts)
        schema = own.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": file_name}


def _from_own_file(file: Path, changes: Changes) -> dict[str, Any]:
    content = _read_mapping(file, changes)
    build = _validate(_build_section(), content.get("build") or {}, file, "build.")
    facts = {key: str(content[key]) for key in ("name", "version", "description") if key in content}
    return facts | {name: getattr(build, name) for name in type(build).model_fields}


def _from_peer_file(file: Path, changes: Changes) -> dict[str, Any]:
    content = _read_mapping(file, changes)
    config = _validate(_PeerConfig, content, file)
    build = config.build_config or _PeerBuild()
    return {
        "name": config.name,
        "version": config.version,
        "description": config.description,
        "base": build.base_image,
        "python": build.requirements.python_version or build.python_version,
        "requirements": build.requirements.requirements_file,
        "apt": build.extra_packages,
        "package_data": build.package_data or (),
        "env": config.env,
        "build_env": build.build_env,
        "steps": build.custom_build_steps or (),
        "credentials": build.host_credentials,
        "inherit_packages": build.inherit_base_image_packages,
        "platform": None if build.target_platform == "native" else build.target_platform,
        "check": not build.skip_checks,
        "metadata": config.metadata,
        "is_peer": True,
    }


def _read_mapping(file: Path, changes: Changes) -> dict[str, Any]:
    content = read_mapping(file)
    for (*way, last), value in changes.items():
        place = content
        for key in way:
            place[key] = dict(place.get(key) or {})
            place = place[key]
        place[last] = value
    return content


def _validate(model: type[Any], content: Any, file: Path, prefix: str = "") -> Any:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = prefix + ".".join(map(str, first["loc"]))
        raise DefinitionError(
            f"{file}: {place or 'the file'}: {first['msg']}.", code="bad_project_file"
        ) from error
