"""Measuring servers: `headrace bench`."""
