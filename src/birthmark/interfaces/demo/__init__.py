"""The demo: real servers and an agent, supervised by the same commands a user types."""
