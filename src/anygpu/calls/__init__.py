"""Calls of decorated functions: what is known about them, and what runs the next one.

`offload` is the decorator, with `options`. `signature` makes the key of a call, under which `call_table` keeps its
site. `lifecycle` is the life of a site, as a table; `looking` decides when native code or planning is tried, and
`loading` imports either in the `background`. The room is not called `offload`: `anygpu.offload` is the decorator.
"""
