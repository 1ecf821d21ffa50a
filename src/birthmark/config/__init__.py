"""The wishes: what an ``mcpServers`` file or a ``birthmark.toml`` names, as values. Starts nothing."""
