"""Sections of `benchmarks/gpu.py` that fail; a module, so that another process can import it."""

import os


def serve(connection, options):
    """A process of sections of which one fails, one dies and one never ends."""
    for name in iter(connection.recv, None):
        if name == "dies":
            os._exit(3)
        if name == "never ends":
            connection.recv()
        connection.send({"name": name})
        if name == "fails":
            connection.send({"failed": "of itself"})
        connection.send(None)
        if name == "fails":
            return
