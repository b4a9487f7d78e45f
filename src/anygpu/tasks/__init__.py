"""Tasks as values: the life of one, the queue of many, and how they become batches. Pure: no clock, thread or device."""
