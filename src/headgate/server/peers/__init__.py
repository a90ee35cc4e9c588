"""Who owns what, and how it is asked: other processes of this server, and other servers of a deployment."""
