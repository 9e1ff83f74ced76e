"""Public names of earlier versions, kept working with a deprecation that says what replaces them.

gavel.shape_group(group, gavel.Shaping("rank"))   works, and warns: TrainConfig(advantage="rank")
"""
