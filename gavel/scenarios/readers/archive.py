"""Inspect's `.eval` logs: a zip of one JSON file for each sample, packed with deflate or, since Python 3.14, with zstd.

A sample becomes one row, as it stands in the log's JSON form.
"""

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import zstandard

from gavel.scenarios.readers.row import Row, RowError

_ZSTD = 93
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")


def inspect_samples(path: Path) -> list[Row]:
    """The samples, in the order in which they were logged.

    Raises `RowError` for another kind of zip, or a damaged one.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}  # the last of a name is the one that counts
            samples = [info for name, info in members.items() if name.startswith("samples/")]
            if not samples and "header.json" not in members and "_journal/start.json" not in members:
                raise RowError(
                    f"{path} is a zip archive, and no Inspect log: it has neither header.json nor samples/.",
                    "Unpack it, and name the file inside it.",
                )
            return [Row(f"{path} {info.filename}", json.loads(_member(archive, info, file))) for info in samples]
    except (OSError, zipfile.BadZipFile, zlib.error, zstandard.ZstdError, struct.error, ValueError) as error:
        raise RowError(
            f"{path} is a damaged zip archive: {error}", "Copy it again, or `inspect log recover` it."
        ) from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: BinaryIO) -> bytes:
    """The content of a member; Python's own reader knows zstd only from 3.14 on."""
    if info.compress_type != _ZSTD:
        return archive.read(info)
    file.seek(info.header_offset)
    *_, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    file.seek(name + extra, 1)
    packed = file.read(info.compress_size)
    data = unpacked_zstd(packed)
    if zlib.crc32(data) != info.CRC:
        raise zipfile.BadZipFile(f"{info.filename} has a wrong checksum")
    return data


def unpacked_zstd(packed: bytes) -> bytes:
    """All frames, one after another. Raises `ZstdError` when the last one breaks off: zstandard's streams do not."""
    parts: list[bytes] = []
    while packed:
        frame = zstandard.ZstdDecompressor().decompressobj()
        parts.append(frame.decompress(packed))
        if not frame.eof:
            raise zstandard.ZstdError("it breaks off in the middle of a frame")
        packed = frame.unused_data
    return b"".join(parts)
