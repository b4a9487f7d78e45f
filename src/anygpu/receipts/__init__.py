"""Receipts of calls, the notes that they are made from, and what users see while something runs."""
