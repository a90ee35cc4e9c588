"""Does Headgate do what the public conformance cases say? Programs that take any file of their form."""
