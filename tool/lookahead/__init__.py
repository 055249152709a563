"""The tool behind ./lookahead: builds, tests, measures and examines pg_lookahead."""

__version__ = "0.1.0"
