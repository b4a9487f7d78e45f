"""`anygpu verify`: a device of the user's own machine is tried, and the outcome is a record that can be sent to us.

`checks` lists what is tried, `running` does it within a time, `reducing` makes small what differs, and `document` is
the record. What users get is what is tried: programs run in the worker that calls use, and functions are called as
`anygpu.run(function, …, on=device, fallback="raise")` calls them.
"""
