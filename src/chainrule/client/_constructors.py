"""The constructors of `Component`, one for each place where a component may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from chainrule._errors import DefinitionError
from chainrule._registry import provided
from chainrule.client._connections import MAX_ANSWER_BYTES, Verify
from chainrule.client._transport import Transport
from chainrule.runtime import ComponentConfig, LocalComponent


class Constructors:
    """The part of `Component` that makes one.

    Args:
        transport: the way to the component.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    @classmethod
    def from_api(
        cls,
        source: str | Path | ModuleType | LocalComponent | Any,
        *,
        config: ComponentConfig | Mapping[str, Any] | None = None,
    ) -> Self:
        """A component in this process.

        Args:
            source: a path to a module file or its folder, an imported module, a function with annotated
                arguments, or a component.
            config: settings of the component.

        Raises:
            DefinitionError: the source is not a complete component.
        """
        from chainrule.client._transport import InProcessTransport
        from chainrule.runtime import load_component

        _check_no_url(source)
        component = load_component(source, config=config)
        return cls(InProcessTransport(component, source))

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        token: str | None = None,
        timeout: float | None = None,
        retries: int = 2,
        idempotent: bool = False,
        share_memory: bool = True,
        verify: Verify = True,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> Self:
        """A component that is served somewhere, by Chainrule or by a Tesseract. Nothing is sent yet.

        Args:
            url: `http://host:port`, with the path of the component where a server has several.
            token: by which the server knows you.
            timeout: seconds that a call may take, from the connection to the last byte of its answer; `None`
                waits forever.
            retries: how often a call is repeated when it certainly has not run: the connection could not be
                made or broke while the request was sent, or the server turned it away with `Retry-After`.
            idempotent: calls may run twice; they are then repeated also when the connection broke later.
            share_memory: let arrays go through shared memory when the server is on this host.
            verify: how certificates of `https` are checked: a PEM file of authorities to trust, or an
                `ssl.SSLContext`; `False` trusts any.
            max_answer_bytes: of one answer, as it is received and as it is decoded; a larger one is refused
                before it is read (`answer_too_large`).

        Raises:
            InputError: the URL is not one (`bad_url`), or an option makes no sense (`bad_option`).
        """
        from chainrule.client._http import HttpTransport

        return cls(
            HttpTransport(
                url,
                token=token,
                timeout=timeout,
                retries=retries,
                idempotent=idempotent,
                share_memory=share_memory,
                verify=verify,
                max_answer_bytes=max_answer_bytes,
            )
        )

    @classmethod
    def from_umbridge(
        cls,
        url: str,
        name: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        verify: Verify = True,
        max_answer_bytes: int = 1 << 30,
    ) -> Self:
        """A model behind a UM-Bridge server, with the derivatives that it offers.

        Its vectors are the inputs `input_0`, … and the outputs `output_0`, …, or have the names that a server
        of ours tells. The input `config` is handed to the model as it is.

        Args:
            url: of the server.
            name: of the model; needed when the server has several.
            config: for which sizes are asked, and the default of the input `config`.
            timeout: seconds that a request may take; `None` waits forever.
            verify: as in `from_url`.
            max_answer_bytes: of one answer; a longer one is refused.

        Raises:
            CapabilityError: the server has no such model (`model_unknown`).
            TransportError: it cannot be reached, is no UM-Bridge server (`not_umbridge`), or
                answers with too much (`answer_too_large`).
        """
        from chainrule.client._umbridge import open_model

        model = open_model(
            url,
            name,
            config=config,
            timeout=timeout,
            verify=verify,
            max_answer_bytes=max_answer_bytes,
        )
        return cls.from_api(model)

    @classmethod
    def from_source(
        cls,
        path: str | Path,
        *,
        config: ComponentConfig | Mapping[str, Any] | None = None,
        environment: bool | str | Path = False,
        python: str | Path | None = None,
        startup_timeout: float = 60.0,
        timeout: float | None = None,
    ) -> Self:
        """A component in a process of its own, which ends with this object or this process.

        Args:
            path: of the module file or its folder.
            config: settings of the component.
            environment: give the process a virtual environment with the component's own requirements:
                `True` for one beside the component, or a folder for it.
            python: the interpreter to use instead.
            startup_timeout: seconds that loading the component may take.
            timeout: seconds that a call may take; a call that takes longer ends the process.

        Raises:
            DefinitionError: the component cannot be loaded.
            TransportError: the process ended or did not start in time.
        """
        from chainrule.client._environment import ensure_environment
        from chainrule.client._subprocess import SubprocessTransport

        _check_no_url(path)
        source = Path(path).resolve()
        if environment:
            folder = None if environment is True else Path(environment)
            python = ensure_environment(source, folder)
        return cls(
            SubprocessTransport(
                str(source),
                config=config,
                python=None if python is None else str(python),
                startup_timeout=startup_timeout,
                timeout=timeout,
            )
        )

    @classmethod
    def from_cluster(
        cls, name: str, *, address: str | None = None, startup_timeout: float = 60.0
    ) -> Self:
        """A component that `chainrule.deploy.ray.deploy` put on a Ray cluster under a name.

        Args:
            name: of the pool.
            address: of the cluster, such as `ray://head:10001` or `head:6379`; the one this process is
                connected to, or the one that Ray finds, when not given.
            startup_timeout: seconds to wait for a replica that is up.

        Raises:
            TransportError: there is no such cluster or no such pool.
        """
        options = {"address": address, "startup_timeout": startup_timeout}
        return cls(provided("cluster_transport")(name, **options))

    @classmethod
    def from_image(
        cls,
        image: str,
        *,
        gpus: str | Sequence[str | int] | None = None,
        memory: str | None = None,
        volumes: Mapping[str | Path, str] | Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        network: str | None = None,
        user: str | None = None,
        input_path: str | Path | None = None,
        output_path: str | Path | None = None,
        workers: int = 1,
        reuse: bool = False,
        engine: str | None = None,
        extra: Sequence[str] = (),
        startup_timeout: float = 120.0,
        timeout: float | None = None,
    ) -> Self:
        """A component in a container, on a free port of loopback; gone with this object or this process.

        Args:
            image: built by `chainrule image build` or by tesseract-core.
            gpus: `"all"`, or numbers or names of NVIDIA devices.
            memory: the most it may use, such as `"2g"`.
            volumes: `{folder here: folder there}`, or `"here:there[:ro|rw]"`s; read-only unless `:rw` is
                added.
            env: variables.
            network: a network of the engine, or `"host"`.
            user: `uid[:gid]` to run as.
            input_path: folder here that callers may name files in.
            output_path: folder here for files of runs; the container then runs as the calling user.
            workers: processes that answer calls.
            reuse: use a container of this image that was left running, or leave this one running.
            engine: `podman` or `docker`; the first one that is installed when not given.
            extra: further arguments of the engine's `run`.
            startup_timeout: seconds that the container may take to answer.
            timeout: seconds that any one wait may last; `None` waits forever.

        Raises:
            CapabilityError: there is no engine, or no such image.
            TransportError: the container did not start; the message has its log.
        """
        return cls(
            provided("image_transport")(
                image,
                gpus=gpus,
                memory=memory,
                volumes=volumes,
                env=env or {},
                network=network,
                user=user,
                input_path=input_path,
                output_path=output_path,
                workers=workers,
                extra=extra,
                reuse=reuse,
                engine=engine,
                startup_timeout=startup_timeout,
                timeout=timeout,
            )
        )


def _check_no_url(source: Any) -> None:
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        raise DefinitionError(
            f"{source} is the address of a server, not of a file: Component.from_url({source!r}).",
            code="bad_source",
        )
