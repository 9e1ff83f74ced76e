"""OpenEnv (0.10), both ways: its environments as scenarios, and scenarios as its environments."""
