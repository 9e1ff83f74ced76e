"""Checkpoints kept elsewhere: in an S3-compatible store, the Hugging Face Hub, Weights & Biases, or a directory.

    store = open_store("s3://backups/gavel")
    push_checkpoint(Path("runs/desk/clerk"), 12, store, "desk/clerk")
    pull_checkpoint(store, "desk/clerk", 12, Path("elsewhere/desk/clerk"))

`store` says what a store does and opens one by its address, `s3`, `hub`, `wandb_store` and `folder` are the kinds,
and `transfer` moves checkpoints: what is there already is not sent again, and a checkpoint counts once its manifest is
there, which comes last.
"""
