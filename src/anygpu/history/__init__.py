"""What calls took, kept across processes: a hint for the next one, never more than that."""
