"""Large bodies of jobs: one file each in a folder, or one object each in a bucket of an S3 service.

A body is written once, under a name that is never used again, before the row that says it is there. It is
removed before its row says that it is gone. So a row never names a body that is half written.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from chainrule._errors import DefinitionError, StorageError, missing_dependency
from chainrule._files import write_whole

_log = logging.getLogger(__name__)

# Names that `PostgresJobStore` gives: `JOB-SERVER.KIND`, and those of files that are half written.
_BODY = re.compile(r"\.?[0-9a-f]{24}-[0-9a-f]{24}\.(request|result)(\..*)?")


class Objects(ABC):
    """Bodies by their names. Safe between threads."""

    @abstractmethod
    def put(self, name: str, pieces: list[Any]) -> None:
        """Keep a body. When this returns, a loss of power cannot lose it.

        Raises:
            StorageError: it cannot be kept.
        """

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """A body; `None` when there is none of this name.

        Raises:
            StorageError: it cannot be read.
        """

    @abstractmethod
    def remove(self, *names: str) -> None:
        """Remove bodies; those that are gone already are no error, nor are those that cannot be removed."""

    @abstractmethod
    def older_than(self, seconds: float) -> list[str]:
        """Names of bodies that were written longer ago; none while that cannot be learnt."""


class FolderObjects(Objects):
    """Bodies in files that only their owner may read.

    Args:
        folder: where they are; for several servers, one that all of them mount.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Where a body is."""
        return self._folder / name

    def put(self, name: str, pieces: list[Any]) -> None:
        """Keep a body."""
        try:
            write_whole(self.path(name), pieces, durable=True, private=True)
        except OSError as error:
            raise StorageError(f"A job cannot be kept: {error.strerror}.") from error

    def get(self, name: str) -> bytes | None:
        """A body; `None` when there is none of this name."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"The jobs cannot be read: {error.strerror}.") from error

    def remove(self, *names: str) -> None:
        """Remove bodies."""
        for name in names:
            with contextlib.suppress(OSError):
                self.path(name).unlink()

    def older_than(self, seconds: float) -> list[str]:
        """Names of bodies that were written longer ago."""
        before, found = time.time() - seconds, []
        with contextlib.suppress(OSError), os.scandir(self._folder) as files:
            for file in files:
                if _BODY.fullmatch(file.name) and file.stat().st_mtime < before:
                    found.append(file.name)
        return found


class S3Objects(Objects):
    """Bodies in a bucket. boto3 finds its credentials, region and address where it always does.

    Args:
        bucket: its name.
        prefix: what the names of all objects begin with.

    Raises:
        CapabilityError: boto3 is not installed (`missing_dependency`).
        StorageError: the bucket cannot be used (`jobs_objects_unreachable`).
    """

    def __init__(self, bucket: str, prefix: str) -> None:
        try:
            import boto3
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError, ClientError
        except ModuleNotFoundError as error:
            raise missing_dependency(
                "Jobs in a bucket need", error.name, "'chainrule[s3]'"
            ) from error
        self._bucket = bucket
        self._prefix = prefix and f"{prefix}/"
        self._refused = (BotoCoreError, ClientError, boto3.exceptions.Boto3Error)
        self._is_unknown = lambda error: (
            isinstance(error, ClientError)
            and (error.response["ResponseMetadata"]["HTTPStatusCode"] == 404)
        )
        try:
            config = Config(connect_timeout=10, retries={"mode": "standard"})
            self._client = boto3.client("s3", config=config)
            self._client.head_bucket(Bucket=bucket)
        except (*self._refused, ValueError) as error:
            raise StorageError(
                f"The bucket {bucket!r} for bodies of jobs cannot be used: {error}. Check --jobs-objects, "
                "the credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or a role), AWS_REGION and, "
                "for a service other than AWS, AWS_ENDPOINT_URL.",
                code="jobs_objects_unreachable",
            ) from error

    def put(self, name: str, pieces: list[Any]) -> None:
        """Keep a body, in parts where it is large."""
        # `upload_fileobj` needs something that it can read again when a part has to be sent a second time.
        content = io.BytesIO(b"".join(pieces))
        try:
            self._client.upload_fileobj(content, self._bucket, self._prefix + name)
        except self._refused as error:
            raise _unreachable(error) from error

    def get(self, name: str) -> bytes | None:
        """A body; `None` when there is none of this name."""
        content = io.BytesIO()
        try:
            self._client.download_fileobj(self._bucket, self._prefix + name, content)
        except self._refused as error:
            if self._is_unknown(error):
                return None
            raise _unreachable(error) from error
        return content.getvalue()

    def remove(self, *names: str) -> None:
        """Remove bodies."""
        for name in names:
            with contextlib.suppress(*self._refused):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def older_than(self, seconds: float) -> list[str]:
        """Names of bodies that were written longer ago, from lists of a thousand each."""
        before = datetime.now(UTC) - timedelta(seconds=seconds)
        pages = self._client.get_paginator("list_objects_v2")
        found = []
        with contextlib.suppress(*self._refused):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for each in page.get("Contents", ()):
                    name = each["Key"].removeprefix(self._prefix)
                    if _BODY.fullmatch(name) and each["LastModified"] < before:
                        found.append(name)
        return found


def _unreachable(error: Exception) -> StorageError:
    _log.error("the bucket with the bodies of jobs does not answer: %s", error)
    return StorageError("The bucket with the bodies of jobs does not answer; try again later.")


def open_objects(where: str) -> Objects:
    """The place that `--jobs-objects` names: `s3://BUCKET/PREFIX`, or a folder.

    Raises:
        DefinitionError: this is another kind of URL (`bad_jobs_objects`).
        StorageError: the place cannot be used.
    """
    if "://" not in where:
        folder = Path(where)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(
                f"The bodies of jobs cannot be kept in {folder}: {error.strerror}. All servers that share "
                "the jobs have to be able to write to this folder.",
                code="jobs_objects_unreachable",
            ) from error
        return FolderObjects(folder)
    url = urlsplit(where)
    if url.scheme != "s3" or not url.netloc:
        raise DefinitionError(
            f"--jobs-objects takes s3://BUCKET/PREFIX or a folder; found {url.scheme}://….",
            code="bad_jobs_objects",
        )
    return S3Objects(url.netloc, url.path.strip("/"))
