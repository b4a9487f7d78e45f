"""What notebooks show: receipts, plans, devices, programs and the like as HTML, and the magics of `%load_ext anygpu`.

Nothing here runs or computes what it draws. The HTML has no scripts, asks for nothing from anywhere, and takes its
colours from the notebook's theme.
"""
