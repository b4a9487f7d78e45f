"""What the code of a function, and of all that it can call, does with its arrays: evaluated without values."""
