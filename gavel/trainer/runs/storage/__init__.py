"""Checkpoints kept elsewhere: in an S3-compatible store, the Hugging Face Hub, or a directory.

    store = open_store("s3://backups/gavel")
    push_checkpoint(Path("runs/desk/clerk"), 12, store, "desk/clerk")
    pull_checkpoint(store, "desk/clerk", 12, Path("elsewhere"), ("desk", "clerk"))

`store` opens one by its address and moves checkpoints; `s3` and `hub` are kinds.
"""
