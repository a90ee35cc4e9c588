"""Where is event N? The chunk log: format, Bloom filters, writer, reader, recovery."""
