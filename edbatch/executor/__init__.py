"""The executor: the compiled program that reads a stream and fills arenas."""
