"""The console: pages for a browser, which use the public API alone."""
