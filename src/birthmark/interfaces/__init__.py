"""The doors: each translates a wish into one verb of the rooms below, and the answer into words."""
