"""The stream: a laid out minibatch as integers, and the buckets they are padded to."""
