"""Atropos' trajectory API, both ways: groups from its environments for our learner or another trainer, and ours for it.

The API is that of atroposlib 0.4.0. Importing this loads no torch.
"""
