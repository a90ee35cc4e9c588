"""The chunk log: format, Bloom filters, writer, reader, recovery."""
