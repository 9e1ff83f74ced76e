"""Tasks for the tools of a server, written by a model and tried before anybody trains on them."""
