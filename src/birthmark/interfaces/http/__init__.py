"""The API of a running supervisor, over HTTP on a unix socket."""
