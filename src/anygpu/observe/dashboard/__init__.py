"""`anygpu dashboard`: pages that follow the observed processes of this user, in a browser.

In the order data passes through: `server` asks the processes, `history` remembers their answers in a fixed memory,
`panels` and `tables` make columns of it, which the page asks `server` for and draws in the `figures`. Only `figures`
and `server` import Bokeh.
"""
