"""Shipped scenarios: one module each, with its `scenario` and, where it is played by script, its `PLAYERS`."""
