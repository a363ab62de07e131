"""What batches cost: a model of measured times, and its file."""
