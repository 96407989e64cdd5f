"""Mains of the engine's processes: each builds one actor from its plugins and links it to the others."""
