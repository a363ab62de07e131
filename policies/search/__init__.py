"""Search for schedules of fewer batches, within milliseconds or exhaustively.

20 ms of search after a learned policy take word lattices from 248 to 237 batches, DAGs
of speech from 51 to 48 and trees of two types from 36.4 to 35.9 (`edbatch compare`,
docs/results-policies.md).
"""
