"""The model families that plugins provide, for runners built by hand."""

from headrace.core.config import Config, EngineConfig
from headrace.core.providers import TextContext
from headrace.plugins.manager import load_plugins

FAMILIES = load_plugins(Config()).families(TextContext(EngineConfig(), None))
"""What builds each, by architecture."""
