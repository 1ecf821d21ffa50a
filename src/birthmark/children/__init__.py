"""Children: spawn them marked, say who they are, stop them."""
