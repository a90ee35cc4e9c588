"""Publish and subscribe from Python with the CloudEvents SDK, Flask, FastAPI and aiohttp."""
