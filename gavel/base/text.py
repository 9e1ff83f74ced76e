"""A number with what it counts, for messages: `1 group`, `1,600 groups`, `2 replies`."""


def counted(number: int, noun: str) -> str:
    """`noun` in the singular; its plural is regular."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        noun = f"{noun[:-1]}ie"
    return f"{number:,} {noun}s"
