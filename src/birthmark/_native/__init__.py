"""Native code, one file, optional: `spawn`, the spawner thread. Imported by `platforms/` only.

Absent without a compiler, outside Linux, and on free-threaded builds, which have no stable ABI.
"""
