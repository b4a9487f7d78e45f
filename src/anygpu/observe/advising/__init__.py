"""What to change in a program so that it takes less time: seen by an `Advisor`, concluded in `findings`.

`watching` is apart from all of it: it runs a script that need not know anygpu.
"""
