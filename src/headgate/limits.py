"""Which maxima hold? Every limit by name, with its unit last and its reason. Grouped by the room that uses it."""

from __future__ import annotations

from typing import Final

# --- event ---------------------------------------------------------------------------------------
EVENT_BYTES_MAX: Final = 1 << 20
"""One event's body. CloudEvents asks intermediaries for at least 64 KiB; 1 MiB is what Knative users set."""
JSON_DEPTH_MAX: Final = 1_000
"""Nesting of JSON data: cel-cpp's and Jackson's own limits lie just above."""

# --- filter --------------------------------------------------------------------------------------
SIGNATURES_COMPILED_MAX: Final = 64
"""Signatures in one Spark plan: 64 cost a fifth of the speed, 256 make code generation give up."""

# --- log -----------------------------------------------------------------------------------------
BLOOM_BYTES_MIN: Final = 16
BLOOM_BYTES_MAX: Final = 255
"""Bloom filter per chunk, RabbitMQ streams' bounds: one length byte in the header."""

# --- control -------------------------------------------------------------------------------------

# --- ingress -------------------------------------------------------------------------------------

# --- match ---------------------------------------------------------------------------------------

# --- dispatch ------------------------------------------------------------------------------------
