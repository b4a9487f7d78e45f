"""The queue of many tasks: lanes, deadlines, tenants, batches."""
