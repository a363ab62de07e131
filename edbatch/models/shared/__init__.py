"""What several workloads share: readers, gates, initial parameters, the registry."""
