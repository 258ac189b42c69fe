"""A stored answer in the format that whoever fetches it asks for."""

from __future__ import annotations

from typing import Any

from chainrule._codec import (
    FRAMES_MEDIA_TYPE,
    TRUSTING_LIMITS,
    BinrefWriter,
    Negotiated,
    decode_body,
    encode_body,
    negotiate,
)
from chainrule._errors import InputError
from chainrule.runtime.internal import ComponentConfig
from chainrule.serve._answering import plain_form
from chainrule.serve._calls import Reply
from chainrule.serve._jobs._record import JobRecord
from chainrule.serve._jobs._store import damaged_result


def to_reply(
    record: JobRecord, content: bytes, accept: str | None, config: ComponentConfig
) -> Reply:
    """The answer of a job that is over. Takes as long as its arrays are large: not for the event loop.

    Args:
        record: the job.
        content: its stored answer.
        accept: what the caller wants; what it said with the request when it says nothing now.
        config: formats that are preferred, and where files go.

    Raises:
        NotAcceptableError: nothing that was asked for can be produced.
        StorageError: what is stored is damaged (`job_result_damaged`).
    """
    assert record.result_status is not None
    assert record.result_type is not None
    if record.result_status != 200 or record.result_type != FRAMES_MEDIA_TYPE:
        return Reply(record.result_status, record.result_type, [content])
    form = negotiate(
        accept or record.accept,
        default_format=config.output_format,
        default_compression=config.compression,
    )
    form = plain_form(record.endpoint, form)
    if form == Negotiated(FRAMES_MEDIA_TYPE.removeprefix("application/"), None, True):
        return Reply(200, FRAMES_MEDIA_TYPE, [content])
    try:
        tree = decode_body(content, media_type=FRAMES_MEDIA_TYPE, limits=TRUSTING_LIMITS)
    except InputError as error:  # of no caller's doing
        raise damaged_result() from error
    options: dict[str, Any] = {
        "format": form.format,
        "compression": form.compression,
        "sparse": form.sparse,
    }
    if form.format != "json+binref":
        return Reply(200, form.media_type, encode_body(tree, **options))
    with BinrefWriter(config.output_path, run=f"run_{record.run_id}") as writer:
        return Reply(200, form.media_type, encode_body(tree, writer=writer, **options))
