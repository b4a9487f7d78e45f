"""The same calls on other machines, through Ray."""
