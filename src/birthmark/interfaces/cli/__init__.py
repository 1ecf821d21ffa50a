"""The command line: one command, one verb, one rendering."""
