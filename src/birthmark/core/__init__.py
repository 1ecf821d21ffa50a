"""Values and decisions: no system call, no clock, no file is touched in this room."""
