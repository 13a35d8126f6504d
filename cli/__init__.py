"""The `pdtrace` command: parse, call, print."""
