"""Paid hosts on loopback, one file each, by their published interfaces."""
