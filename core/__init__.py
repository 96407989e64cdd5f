"""The three actors and everything all processes share. No torch, no transformers."""
