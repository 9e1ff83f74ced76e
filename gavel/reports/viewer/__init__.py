"""A local viewer of runs and judged files in the browser: what the agent did, what it got, and why.

    gavel view runs        # http://127.0.0.1:8095

`index.py` keeps what lists and filters need of every group in a database of its own; a group itself is read from its
file when it is opened. Pages are HTML without scripts that they depend on. All text of agents, tools and judges is
escaped.
"""
