"""Games of textarena as scenarios: `textarena:GAME`."""
