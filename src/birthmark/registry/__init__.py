"""The memory: what an installation knows between runs."""
