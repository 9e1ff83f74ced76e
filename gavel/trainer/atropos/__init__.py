"""Atropos' trajectory API, both ways: groups from its environments for our learner or another trainer, and ours for it.

    registration   what trainers and environments say of themselves
    batch_choice   which waiting groups make the next batch, oldest first
    group_queue    the groups on disk: an accepted one survives SIGKILL, and is trained once
    queue_state    the queue for one event loop, and what waits for it
    request_body   keys, gzip and limits of size and time
    app            the routes
    learner        takes batches from the queue and trains on them
    serve          all of these in one process, until it is told to stop
    sender         pushes judged groups of a scenario to any server of this API

The API is that of atroposlib 0.4.0. Importing this loads no torch.
"""
