"""τ²-bench: the scenarios `tau2_retail` and `tau2_airline`."""
