"""The judge as an HTTP service, which never loses an accepted group or a paid reply.

    gavel serve --judge openai/gpt-5-mini

    http     the application: routes, limits, problems            config   its settings
    engine   accepts, judges and answers; every route uses it     client   the Python client
    store    judgements, groups, keys and replies in the database errors   each with its status and remedy
    schemas  what is taken, answered and stored, as plain data

A request is committed before it is acknowledged, and a judgement before it is answered. Importing this package imports
none of its modules.
"""
