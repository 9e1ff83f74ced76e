"""One file for each revision, each with the one before it; there is one newest."""
