"""Groups that a simulated judge has scored, for the tests of the judge's report."""

from random import Random

from benchmarks.engine_quality import Bias, Latent, SimulatedJudge
from gavel.judge.judge import Judge
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory
from tests.judge.groups import choice


async def judged(
    *names: str, groups: int = 12, orders: int = 2, metric: str = "independent_reward"
) -> list[TrajectoryGroup]:
    """Groups of 4, each scored by the judges of these names; the latent quality is the metric `metric`."""
    random = Random(0)
    table: dict[str, Latent] = {}
    made: list[TrajectoryGroup] = []
    for number in range(groups):
        ids = [f"sim-{number}x{n}" for n in range(4)]
        table |= {name: Latent(random.gauss()) for name in ids}
        members = [Trajectory(messages_and_choices=[choice(f"{n} {'.' * random.randrange(99)}")]) for n in ids]
        for name, member in zip(ids, members, strict=True):
            member.metrics = {metric: table[name].quality, "success": table[name].quality > 0}
        made.append(TrajectoryGroup(members))
    judge = Judge([SimulatedJudge(table, Bias(slope=0.5, noise=0.5), name=name) for name in names], orders=orders)
    return [await judge.score(group) for group in made]
