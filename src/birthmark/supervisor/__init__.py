"""The household: what should be, and the way there."""
