"""Rewards of single turns (`Trajectory.step_rewards`) and of whole trajectories, assigned to trained tokens.

With a value head (PPO) a turn's reward is given at the turn's last token, the trajectory's reward at the last trained
token of each of its sequences; every other trained token has reward 0. A choice whose extra field `token_rewards` has a
number for each of its tokens says which parts of the trajectory's reward are paid at these; the rest is paid at the
end. Without a value head, the turns of a group are compared
(`step_advantages`): [[1, 0], [0]] has the mean 1/3, so the first member's turns have 2/3 and -1/3, and the tokens of
its first turn get their sum. A sampler may also give the advantage of each token itself (`Choice.token_advantages`),
which then stands in place of what the rewards give.
"""

import math
from collections.abc import Sequence

from openai.types.chat.chat_completion import Choice

from gavel.scenarios.trajectory import Trajectory
from gavel.trainer.data.token_sequences import TokenError, TokenSequence

TOKEN_ADVANTAGES = "token_advantages"
"""Field of a `Choice`: the advantage of each of its tokens, in place of what the rewards give."""


def fits_its_turns(trajectory: Trajectory) -> bool:
    """Whether the trajectory's step rewards, if it has any, are one finite number for each sampled turn, and the token
    rewards of a turn one for each of its tokens."""
    for choice in trajectory.choices():
        own = _token_rewards(choice)
        ids = (choice.model_extra or {}).get("token_ids") or ()
        if own is not None and not (len(own) == len(ids) and all(map(math.isfinite, own))):
            return False
    rewards = trajectory.step_rewards
    return rewards is None or (len(rewards) == len(list(trajectory.choices())) and all(map(math.isfinite, rewards)))


def step_advantages(members: Sequence[Trajectory], *, divide: bool) -> list[list[float]]:
    """The advantage of each turn of each member: its reward less the mean over all turns of the group.

    `divide`: over the standard deviation (unbiased) + 1e-4. Empty for members without step rewards.
    """
    rewards = [reward for member in members for reward in member.step_rewards or ()]
    if not rewards:
        return [[] for _ in members]
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / max(1, len(rewards) - 1)) + 1e-4 if divide else 1.0
    return [[(reward - mean) / spread for reward in member.step_rewards or ()] for member in members]


def token_advantages(outcome: float, turns: Sequence[float], tokens: TokenSequence) -> list[float]:
    """Of each trained token: the trajectory's advantage, its own turn's and those of later turns of the sequence.

    `turns`: the turns' advantages. `[T]`
    """
    ends = [(position, turns[turn]) for turn, position in tokens.turn_ends.items()] if turns else []
    return [
        outcome + math.fsum(advantage for end, advantage in ends if end >= position)
        for position, trained in enumerate(tokens.sampled)
        if trained
    ]


def gives_advantages(trajectory: Trajectory) -> bool:
    """Whether a turn of it carries the advantages of its tokens."""
    return any(TOKEN_ADVANTAGES in (choice.model_extra or {}) for choice in trajectory.choices())


def has_given_signal(trajectory: Trajectory) -> bool:
    """Whether one of the advantages that its turns carry is not 0."""
    return any(any((choice.model_extra or {}).get(TOKEN_ADVANTAGES) or ()) for choice in trajectory.choices())


def given_advantages(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """Of each trained token of one of the trajectory's sequences: what its turn carries, 0 for a turn without. `[T]`

    Raises `TokenError` for a turn with another number of advantages than tokens, or with one that is not finite.
    """
    choices = list(trajectory.choices())
    found = dict.fromkeys((position for position, trained in enumerate(tokens.sampled) if trained), 0.0)
    for turn, end in tokens.turn_ends.items():
        extra = choices[turn].model_extra or {}
        given: list[float] | None = extra.get(TOKEN_ADVANTAGES)
        if given is None:
            continue
        length = len(extra["token_ids"])
        if len(given) != length or not all(map(math.isfinite, given)):
            raise TokenError(
                f"a sampled turn has {length} token ids and {len(given)} token_advantages, or one is not finite",
                "Give one finite number for each token.",
            )
        found |= {end - length + 1 + at: float(value) for at, value in enumerate(given)}
    return list(found.values())


def token_rewards(trajectory: Trajectory, tokens: TokenSequence) -> list[float]:
    """The rewards of the trained tokens of one of the trajectory's sequences. `[T]`, at least one token

    Every sequence of the trajectory (a forked history, a sub-agent's conversation) ends with the trajectory's reward.
    Of a turn that a further history repeats, the first one's step reward counts.
    """
    rewards = dict.fromkeys((position for position, trained in enumerate(tokens.sampled) if trained), 0.0)
    if trajectory.step_rewards is not None:
        for turn, position in tokens.turn_ends.items():
            rewards[position] += trajectory.step_rewards[turn]
    early = 0.0
    for turn, choice in enumerate(trajectory.choices()):
        if (own := _token_rewards(choice)) is None or turn not in tokens.turn_ends:
            continue
        for at, reward in enumerate(own, tokens.turn_ends[turn] + 1 - len(own)):
            rewards[at] += reward
            early += reward
    found = list(rewards.values())
    found[-1] += (trajectory.reward or 0.0) - early
    return found


def _token_rewards(choice: Choice) -> Sequence[float] | None:
    return (choice.model_extra or {}).get("token_rewards")
