"""Tasks as values: the life of one, and the queue of many. Pure: no clock, no thread, no device."""
