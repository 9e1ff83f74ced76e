"""The records of deployments under a directory of runs, by run or by id."""

from pathlib import Path

from gavel.trainer.deploy.errors import DeployError
from gavel.trainer.deploy.record import DEPLOYMENTS, DeploymentRecord, read_records


def find_records(root: Path, named: str | None, *, by_id: bool = False) -> list[DeploymentRecord]:
    """Those of a run (`desk/clerk`, or its directory), of all runs without a name; `by_id`: or the one of this id.

    Raises `DeployError` for a name that is neither.
    """
    runs = sorted(path.parent for path in root.glob(f"*/*/{DEPLOYMENTS}"))
    if named is None:
        return [record for run in runs for record in read_records(run)]
    if by_id and (found := [each for run in runs for each in read_records(run) if each.id == named]):
        return found
    for run in (Path(named), root / named):
        if (run / "model.json").is_file() or (run / DEPLOYMENTS).is_dir():
            return read_records(run)
    what = "deployment or run" if by_id else "run"
    raise DeployError(f"there is no {what} {named!r} in {root}", "`gavel deployments --all` lists them.")
