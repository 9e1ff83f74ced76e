"""An S3-compatible store; credentials, region and endpoint as boto3 finds them (AWS_ACCESS_KEY_ID and the like)."""

# pyright: reportMissingTypeStubs=false

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gavel.base.extras import install_line
from gavel.trainer.runs.storage.store import StorageError, cannot_be_used

_HASH = "sha256"
"""Key of an object's metadata: a multipart upload has no hash of the whole in S3's own fields."""
_ATTEMPTS = 5
_CHECK = (
    "Check the bucket's name, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL_S3 for a store that is "
    "not Amazon's."
)
_REGION = (
    "Set AWS_DEFAULT_REGION to the region of the bucket, which the store's console shows, and give the call again."
)
_KEY = (
    "The key is wrong, or has expired: set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN, or none) "
    "anew. What arrived is not sent again."
)
_REMEDIES = {
    "RequestTimeTooSkewed": "Set the clock of this machine (timedatectl set-ntp true), and give the call again.",
    "NoSuchBucket": "Make the bucket first, or name another.",
    **dict.fromkeys(
        ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"), _REGION
    ),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"), _KEY),
}
"""By S3's own code of an error."""


class S3Store:
    """`s3://bucket/prefix`."""

    def __init__(self, address: str) -> None:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise StorageError("s3:// needs boto3, which is not installed", install_line("s3")) from error
        self.address = address.rstrip("/")
        self._bucket, _, prefix = address.removeprefix("s3://").rstrip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        if not self._bucket:
            raise StorageError(f"{address!r} names no bucket", "Give s3://bucket/prefix.")
        retries: Any = {"mode": "standard", "total_max_attempts": _ATTEMPTS}
        with self._errors():
            self._s3: Any = boto3.client("s3", config=Config(retries=retries))  # pyright: ignore

    def names(self, prefix: str) -> list[str]:
        with self._errors():
            pages = self._s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            return [each["Key"].removeprefix(self._prefix) for page in pages for each in page.get("Contents", ())]

    def read(self, name: str) -> bytes | None:
        with self._errors():
            found = self._found(self._s3.get_object, name)
            return None if found is None else found["Body"].read()

    def has(self, name: str, sha256: str, size: int) -> bool:
        with self._errors():
            found = self._found(self._s3.head_object, name)
        return found is not None and (found["ContentLength"], found["Metadata"].get(_HASH)) == (size, sha256)

    def _found(self, ask: Callable[..., Any], name: str) -> Any:
        from botocore.exceptions import ClientError

        try:
            return ask(Bucket=self._bucket, Key=self._prefix + name)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise

    def send(self, file: Path, name: str, sha256: str) -> None:
        extra = {"Metadata": {_HASH: sha256}, "ChecksumAlgorithm": "SHA256"}
        with self._errors():
            self._s3.upload_file(str(file), self._bucket, self._prefix + name, ExtraArgs=extra)

    def fetch(self, name: str, file: Path) -> None:
        with self._errors():
            self._s3.download_file(self._bucket, self._prefix + name, str(file))

    def remove(self, name: str) -> None:
        with self._errors():
            self._s3.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    def finish(self) -> None:
        """Does nothing: each file is stored as soon as it is sent."""

    @contextmanager
    def _errors(self) -> Generator[None]:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (Boto3Error, BotoCoreError, ClientError) as error:
            told = re.search(r"\((\w+)\) when calling", str(error))
            remedy = _REMEDIES.get(told[1] if told else "", _CHECK)
            raise cannot_be_used(self.address, error, remedy) from error
