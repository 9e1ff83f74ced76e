"""Modules in whose shapes code of other projects is written: OpenPipe ART and RL4LMs."""
