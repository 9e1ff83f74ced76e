"""Text helpers: a number with its noun (`1 group`, `2 replies`), durations, and decoding of users' files."""

import codecs


def counted(number: int, noun: str) -> str:
    """The count with its noun; `noun` is the singular, and its plural is regular."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        noun = f"{noun[:-1]}ie"
    return f"{number:,} {noun}s"


def decoded(content: bytes) -> str:
    """Decodes UTF-8, with or without a byte order mark, or UTF-16 with one, as Windows editors and shells write it.

    Raises `UnicodeDecodeError` for any other encoding.
    """
    utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if utf_16 else "utf-8-sig")


def duration(seconds: float) -> str:
    """`84 s`, `3 min 20 s`"""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
