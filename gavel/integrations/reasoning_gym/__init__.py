"""Datasets of reasoning-gym as scenarios: `reasoning_gym:DATASET`."""
