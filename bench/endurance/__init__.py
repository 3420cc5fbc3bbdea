"""The long-running commands under a steady load: whether memory, descriptors, threads and latency stay flat."""
