"""Parts shared by workloads: readers, gates, initial parameters, the registry."""
