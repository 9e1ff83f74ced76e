"""Atropos' trajectory API, both ways: its environments' groups for our learner, and our groups for its trainers.

The API is that of atroposlib 0.4.0. Importing this loads no torch.
"""
