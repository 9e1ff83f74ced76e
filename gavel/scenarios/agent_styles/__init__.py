"""Other ways for an agent to take its turns, over any scenario.

    gavel train react:returns_desk …         # thoughts and actions as text, no native tool calls
    gavel train branching:returns_desk …     # several turns sampled, one of them chosen by vote

    scenario = react(gavel.find_scenario("returns_desk"))

The scenario's own episode runs underneath, with the parsed tool calls: tools, world, simulated user and limits are the
same, and `success`, `hand_reward` and the measures are those of that episode.
"""
