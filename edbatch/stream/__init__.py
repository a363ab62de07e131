"""The stream: a laid-out minibatch as integers, and the buckets it is padded to.

Buckets let 50 minibatches of 64 trees share one program (`edbatch bench
--compiles-only`, docs/results.md).
"""
