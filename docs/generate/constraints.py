"""`constraints/EXTRA.txt`: the versions that the tests run with, for each extra: `python docs/generate/constraints.py`.

Run it in the environment that the tests ran in. A file has what the extra asks for and all that this asks for in turn,
as `name==version`; what is not installed here (the extras gpu and cloud have environments of their own) has no file.
"""

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

TARGET = Path(__file__).parents[2] / "constraints"
DISTRIBUTION = "gavel-rl"
EXTRAS = ("base", "train", "service", "mcp", "parquet", "s3", "deploy", "otel", "real", "docs", "dev")


def closure(extra: str) -> dict[str, str]:
    """Distribution to version: all that an installation with the extra holds besides Gavel."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(DISTRIBUTION, "" if extra == "base" else extra)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        if name != DISTRIBUTION:
            found[name] = installed.version.partition("+")[0]
        for text in installed.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                plain = re.sub(r"[-_.]+", "-", requirement.name).lower()
                waiting += [(plain, ""), *((plain, each) for each in requirement.extras)]
    return found


def main() -> None:
    TARGET.mkdir(exist_ok=True)
    for extra in EXTRAS:
        lines = [f"{name}=={version}\n" for name, version in sorted(closure(extra).items())]
        (TARGET / f"{extra}.txt").write_text("".join(lines))


if __name__ == "__main__":
    main()
