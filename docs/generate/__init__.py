"""Pages of the site that are made from the code: commands, settings, errors, public names, and what coding agents read.

Nothing here is written by hand twice: a page is made from what the program itself has, whenever the site is built.
"""
