"""One call: it is traced, its time on each device is predicted, a device is chosen, it runs, and its time is learnt."""
