"""`anygpu dashboard`: pages that follow the observed processes of this user, in a browser.

In the order data passes through: `source` asks the processes, `history` remembers what they said, in a fixed memory,
`panels`, `timeline` and `tables` make columns of it, `figures` draws them, `server` lets the browser of this user in
and nobody else. Only `figures` and `server` import Bokeh.
"""
