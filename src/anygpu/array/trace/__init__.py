"""From an ordinary function to a program: what it captures, what guards a trace, and the trace itself.

A call is traced in this order: `captures` finds all that the function can reach (with `code`, which reads bytecode),
`copies` makes copies of it with abstract arrays in the place of real ones (with `numpy_names`, NumPy as traced code
sees it), `tracing` calls the copy twice and draws the program, and `traced` holds the result with the `guards` that
decide whether a later call may use it.
"""
