"""What a file is known by wherever it is moved to or kept: the SHA-256 of its content."""

import hashlib
from pathlib import Path


def file_sha256(file: Path) -> str:
    """As hexadecimal digits; reads the file in blocks. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
