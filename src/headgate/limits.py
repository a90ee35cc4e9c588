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
BLOOM_HASHES_MAX: Final = 16
"""Hashes of a Bloom filter: more buy nothing once a chunk has few values."""
CHUNK_BODY_BYTES_MAX: Final = 1 << 29
"""One chunk's Arrow message: far above a full batch of 1 MiB events, far below Arrow's 2 GiB columns."""
SCHEMA_BYTES_MAX: Final = 1 << 20
"""A segment's schema message: a reader never allocates more on a damaged header."""
SEGMENT_BYTES_MAX: Final = 1 << 28
"""Default size at which a segment ends: retention's unit, and what recovery reads on open (0.1 s)."""
COMMIT_BATCH_BYTES_MAX: Final = 1 << 23
"""Event bytes that one group commit puts into a chunk, unless one submit alone is larger."""
LOOKUP_CACHE_BYTES_MAX: Final = 64 << 20
"""Chunk bytes that random access keeps in memory: seconds of the tail at full speed."""
INDEX_STRIDE_BYTES: Final = 1 << 16
"""Distance between two remembered chunk positions of a segment: a seek walks at most this far over headers."""
SEGMENTS_OPEN_MAX: Final = 8
"""Segments that one reader or lookup keeps open, each with its index (4,096 positions at most by default)."""

# --- control -------------------------------------------------------------------------------------

# --- ingress -------------------------------------------------------------------------------------

# --- match ---------------------------------------------------------------------------------------

# --- dispatch ------------------------------------------------------------------------------------

# --- server --------------------------------------------------------------------------------------
RESTART_PAUSE_S_MIN: Final = 0.2
RESTART_PAUSE_S_MAX: Final = 10.0
"""Pause before a process that ended is started again: doubles while it keeps failing."""
DRAIN_S_MAX: Final = 30.0
"""SIGTERM to exit, all parts together: Kubernetes' default grace period."""
