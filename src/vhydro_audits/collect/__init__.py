"""Simulators that make episodes: each runs as a worker in an environment of its own."""
