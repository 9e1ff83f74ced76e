"""Base64 in text: a judge cannot read it, so it becomes a mark that states its size and a hash of its bytes.

    data:image/png;base64,iVBORw0…     ->  [base64 image/png data, 48,213 bytes, sha256 ab12cd34ef56]

The mark is the same for the same bytes, in either alphabet. Long words that are not base64 (hexadecimal
digits, sequences of DNA, a repeated letter) stay. Images, audio, video and PDF are told apart: they are content.
"""

import base64
import hashlib
import re
from collections.abc import Sequence

_SHORTEST = 256
"""Characters. Shorter base64 stays as it is, except in data URLs."""
_STRIDE = _SHORTEST // 2
_DISTINCT = 32
"""Base64 of so many characters has more different ones than this; words in one alphabet, or of digits, have fewer."""
_ALPHABET = r"A-Za-z0-9+/_\-"
_BREAK = r"(?:\r?\n|\\r\\n|\\n)"
_TYPE = r"(?P<type>[\w.+-]{1,64}/[\w.+-]{1,64})"
_DENSE = re.compile(rf"[{_ALPHABET}=\r\n\\]{{{_STRIDE}}}")
_RUN = re.compile(
    rf"(?<![{_ALPHABET}])(?P<body>"
    rf"(?:[{_ALPHABET}]{{{_SHORTEST},}}|[{_ALPHABET}]{{60,}}(?:{_BREAK}[{_ALPHABET}]{{60,}}){{3,}})"
    rf"(?:{_BREAK}[{_ALPHABET}]{{60,}})*(?:(?:{_BREAK}[{_ALPHABET}]*)?={{1,2}})?)"
)
"""In lines of at least 60 characters; a shorter last line belongs to it only if padding ends it: it may be a word."""
_DATA_URL = re.compile(rf"data:{_TYPE}?(?:;[\w=.-]{{1,64}})*;base64,(?P<body>[{_ALPHABET}]{{16,}}={{0,2}})")
_NEITHER = re.compile(rf"\\r|\\n|[^{_ALPHABET}]")
_TO_STANDARD = str.maketrans("-_", "+/")


_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image",
    b"\xff\xd8\xff": "image",
    b"GIF8": "image",
    b"RIFF": "media",
    b"ID3": "audio",
    b"OggS": "audio",
    b"fLaC": "audio",
    b"%PDF-": "file",
}
"""How the files of some kinds begin."""


def replace_base64(text: str) -> str:
    """The text with each data URL, and each long run of base64, replaced by its mark. Takes linear time."""
    return describe_base64(text)[0]


def describe_base64(text: str) -> tuple[str, Sequence[str]]:
    """The text as of `replace_base64`, and a tag for each replaced image, sound, video or PDF: `image ab12cd34ef56`."""
    media: list[str] = []
    if ";base64," in text:
        text = _DATA_URL.sub(lambda found: _mark(found["body"], media, found["type"]), text)
    if _has_dense_part(text):
        text = _RUN.sub(lambda found: _mark_if_base64(found, media), text)
    return text, media


def _has_dense_part(text: str) -> bool:
    """Whether a run may be in the text: one of `_SHORTEST` characters covers a whole stride, wherever it begins."""
    return any(_DENSE.match(text, start) for start in range(0, len(text), _STRIDE))


def _mark_if_base64(found: re.Match[str], media: list[str]) -> str:
    letters = _NEITHER.sub("", found["body"])
    kinds = (str.isupper, str.islower, str.isdigit)
    is_base64 = len(set(letters)) >= _DISTINCT and all(any(map(kind, letters)) for kind in kinds)
    return _mark(found["body"], media) if is_base64 else found[0]


def _mark(body: str, media: list[str], kind: str | None = None) -> str:
    """The mark; if the data is media, its tag is added to `media`."""
    letters = _NEITHER.sub("", body)
    whole = len(letters) - (len(letters) % 4 == 1)  # one letter alone holds no byte: the text was cut off
    data = decode(letters[:whole])
    if media_kind := _media_kind(data, (kind or "").casefold()):
        media.append(f"{media_kind} {_hash(data)}")
    return f"[base64 {kind or ''}{' ' if kind else ''}data, {describe_bytes(data)}]{letters[whole:]}"


def _media_kind(data: bytes, kind: str) -> str | None:
    major = kind.partition("/")[0]
    if major in ("image", "audio", "video"):
        return major
    if kind == "application/pdf":
        return "file"
    return next((found for magic, found in _MAGIC.items() if data.startswith(magic)), None)


def decode(letters: str) -> bytes:
    """The bytes of base64 in either alphabet, padded or not, without other characters."""
    letters = letters.rstrip("=").translate(_TO_STANDARD)
    return base64.b64decode(letters + "=" * (-len(letters) % 4))


def describe_bytes(data: bytes) -> str:
    """`48,213 bytes, sha256 ab12cd34ef56`."""
    return f"{len(data):,} bytes, sha256 {_hash(data)}"


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
