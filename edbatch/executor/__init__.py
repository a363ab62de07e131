"""The executor: the compiled program that reads a stream and fills arenas.

One program serves minibatches of any structure. At hidden size 128 the forward pass of
64 trees takes 1.25 times as long as in a program compiled for that very minibatch (each
compilation takes 2 s); at 256, 1.01 times (`edbatch bench`, docs/results.md).
"""
