"""Backends train and serve models: `Backend` is the protocol, `LocalBackend` the one that runs in this process.

    model = gavel.TrainableModel(name="clerk", project="desk", base_model="embedded/returns-desk")
    async with gavel.LocalBackend() as backend:
        await model.register(backend)        # loads, resumes from the newest checkpoint, serves
        result = await model.train(groups)   # one step: the new adapter is saved, live and proven to be
        backend.checkpoints(model)           # [1]

`protocol` is what every backend offers, `local` this machine's, `remote` another machine's and `server` what runs
there; `training_run` is one model in training, and `proof` the check that the sampler follows the learner after
every published adapter.
"""
