"""Search for schedules of fewer batches, within milliseconds or exhaustively."""
