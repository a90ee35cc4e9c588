"""The filter compiler: from CEL to rows of the matcher's table."""
