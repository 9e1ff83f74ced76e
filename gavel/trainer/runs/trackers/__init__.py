"""Where people already look: the metrics, groups and report of a run in another program, beside the run directory.

    tracker = open_tracker("trackio", Tracked(directory, "desk", "one"))
    tracker.log(1, "train", {"reward": 0.5})
    tracker.log_groups(1, "train", groups)

`tracker` says what each of them does and chooses one; `group_table` is what they show of groups. The run directory
stays the record: what a tracker is sent is never read back.
"""
