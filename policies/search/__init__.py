"""Search for schedules with fewer batches, within milliseconds or exhaustively.

With 20 ms of search on top of a learned policy, batches drop from 248 to 237 on word
lattices, from 51 to 48 on DAGs of speech and from 36.4 to 35.9 on trees of two types
(`edbatch compare`, docs/results-policies.md).
"""
