"""Commands that need the package headgate-broker: of the server itself, its files, and filters without a server."""
