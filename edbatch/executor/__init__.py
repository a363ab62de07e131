"""The executor: the compiled program that reads a stream and fills arenas.

One program serves minibatches of any structure. The forward pass of 64 trees takes 1.25
times as long as in a program that is compiled for that very minibatch, in 2 s each, at
hidden 128, and 1.01 times at 256 (`edbatch bench`, docs/results.md).
"""
