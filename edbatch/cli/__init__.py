"""The commands `edbatch` and `train-policy`."""
