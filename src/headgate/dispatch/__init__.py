"""Has everyone received it? Match link, outbox, cursors, delivery, retry."""
