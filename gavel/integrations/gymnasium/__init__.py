"""Gymnasium environments as scenarios: `gymnasium:ID`."""
