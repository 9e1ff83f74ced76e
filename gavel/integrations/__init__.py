"""Integrations with other systems, each in one file or folder.

    GRPOTrainer(model, reward_funcs=gavel.integrations.trl.reward_func("openai/gpt-5-mini"), …)      # the judge's score
    gavel train "verl:train.parquet?reward=reward.py:compute_score"                                   # its tasks
    gavel export trajectories RUN --format agenttraj -o explored.jsonl                                # its files

A folder's files are named after their contents: `reward` (the function that the system's reward hook takes, named as
the system names the hook), `scenario` (its environments as scenarios), `formats` (its files of trajectories),
`command`; templates (`*.j2`) stand beside them. `gavel.base.entry_points` finds them by these names, so that a folder
can be deleted or added without changes elsewhere. Integrations do not import each other; `_rewards` and
`_conversations` are shared. Other distributions' rewards are found at their entry points `gavel.rewards`, and are
available here under their names, too.
"""

from types import ModuleType

from gavel.base import entry_points


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_") or name not in entry_points.names("gavel.rewards"):
        raise AttributeError(
            f"gavel.integrations has no {name!r}; rewards: {', '.join(entry_points.names('gavel.rewards'))}"
        )
    return entry_points.load("gavel.rewards", name)


def __dir__() -> list[str]:
    return [*globals(), *entry_points.names("gavel.rewards")]
