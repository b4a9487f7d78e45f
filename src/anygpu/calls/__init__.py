"""Calls of decorated functions: what is known of them, and what runs the next one.

`lifecycle` is the life of a call site, as a table; `site` has the call sites of functions that name no device. The room
is not called `offload`: the name `anygpu.offload` is the decorator's.
"""
