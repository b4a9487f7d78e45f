"""Advice on a program: an `Advisor` records its calls, `findings` concludes what to change.

`watching` is apart from all of it: it runs a script that need not know anygpu.
"""
