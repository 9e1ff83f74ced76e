"""How the scripted players of the shipped scenarios fare: what each world makes of good work, bad work and none.

python benchmarks/scenario_players.py                 all of them, 100 held-out tasks each
python benchmarks/scenario_players.py maze --tasks 400
"""

import argparse
import asyncio
import time

from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario, find_scenario, shipped_scenarios
from gavel.scenarios.scripted_agent import Player, played_by, players_of

AT_ONCE = 64


async def measure(scenario: Scenario, player: Player, tasks: int) -> str:
    """One row of the table."""
    chosen = scenario.sample("held_out", tasks, seed=0)
    gate = asyncio.Semaphore(AT_ONCE)

    async def play(number: int) -> tuple[bool, float, int]:
        async with gate:
            episode = await rollout(played_by(player, chosen[number], number), scenario, chosen[number], seed=number)
        assert scenario.success is not None
        assert episode.status != "failed", episode.status_reason
        reward = float("nan") if scenario.hand_reward is None else scenario.hand_reward(episode)
        return bool(scenario.success(episode)), reward, sum(1 for _ in episode.choices())

    started = time.process_time()
    played = await asyncio.gather(*map(play, range(len(chosen))))
    seconds = time.process_time() - started
    success, reward, turns = (sum(values) / len(played) for values in zip(*played, strict=True))
    return f"{len(played)} | {success:.2f} | {reward:.2f} | {turns:.1f} | {sum(t for *_, t in played) / seconds:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="default: all that have players")
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks (default: 100)")
    arguments = parser.parse_args()
    print("| scenario | player | tasks | success | hand reward | turns | turns a CPU second |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.scenarios or shipped_scenarios():
        for player_name, player in players_of(name).items():
            row = asyncio.run(measure(find_scenario(name), player, arguments.tasks))
            print(f"| {name} | {player_name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
