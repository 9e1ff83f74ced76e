"""The judge behind HTTP: accepts groups, judges them, and loses nothing that was accepted or paid for.

    gavel serve --judge openai/gpt-5-mini

    app       the HTTP application: routes, limits, problems      config    its settings
    engine    accepts, judges and answers; every route uses it    judges    the judges that requests may ask for
    store     judgements in the database                          replies   the judge models' replies in the database
    database  one writer thread with group commit, readers        client    the Python client

A request is committed before it is acknowledged, and a judgement before it is answered. Importing this package loads
none of its modules.
"""
