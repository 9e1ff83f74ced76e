"""Memory: what a model needs before it is loaded (`gavel plan`), and settings that fit the device.

`planned_policy` is a policy without weights, over which `learner_bytes` runs the learner's own code and counts; `plan`
adds what the sampler holds, and `fitting` finds the largest micro-batch that fits.
"""
