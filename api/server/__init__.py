"""The HTTP server: OpenAI's API on an Engine."""
