"""Where a program should run: predictions, choices and ways to cut, as pure functions of values."""
