"""The floor that learns: a frozen base model with a LoRA adapter, trained by the scores of judged groups.

    backend = LocalBackend()
    model = TrainableModel(name="clerk", project="demo", base_model="embedded/returns-desk")
    await model.register(backend)                       loads the policy, starts the engine and its endpoint
    result = await model.train(groups, TrainConfig())   one step: batch -> gradient -> checkpoint -> live adapter

Wings, from bottom to top; each imports only those before it: embedded (the tiny model), runs (files of a run), data
(judged groups -> token sequences), kernels, policy, engines (sampling), learner (the update), sft, serving (the OpenAI
endpoint), backends, loop.
"""
