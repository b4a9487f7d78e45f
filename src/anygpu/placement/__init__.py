"""Placement: a call is traced, its time on each device predicted, a device chosen; it runs, and its time is learnt.

The way of a planned call, after `anygpu.calls`: `place_call`, `call` and `call_site` (what is known of such calls),
`candidates` and `machine` (where they could run), `strategies` (how), `device_call` (on a device, whose result is
compared with NumPy's by `anygpu.agreement`). `explore` tries devices beside the calls. `history` and `recall` keep what
was learnt for later processes.
"""
