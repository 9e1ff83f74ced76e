"""The groups of one task: members of different agents are not compared with each other.

    an episode of two players gives [X's trajectory, O's]; four episodes give the groups [X X X X] and [O O O O]

A group of trajectories without agents is left as it is.
"""

from collections.abc import Sequence

from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory


def groups_by_agent(group: TrajectoryGroup, others: Sequence[Trajectory]) -> list[TrajectoryGroup]:
    """The group with the episodes' further trajectories, divided by agent in the order of their appearance.

    The first group keeps what is not an agent's: exceptions, and episodes that failed before an agent was known.
    """
    members = [*group.trajectories, *others]
    agents = list(dict.fromkeys(each.agent for each in members if each.agent is not None))
    if len(agents) < 2:
        return [group]
    first, *further = agents
    main = [each for each in members if each.agent in (first, None)]
    return [
        group.model_copy(update={"trajectories": main}),
        *(
            TrajectoryGroup([each for each in members if each.agent == agent], metadata=dict(group.metadata))
            for agent in further
        ),
    ]
