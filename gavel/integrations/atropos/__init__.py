"""Atropos' trajectory API, both ways: its environments' groups for our learner or another trainer, and our groups for
it.

The API is that of atroposlib 0.4.0. Importing this loads no torch.
"""
