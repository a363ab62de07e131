"""Parts that workloads share: readers, gates, initial parameters, the registry."""
