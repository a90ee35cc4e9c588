"""Plan rows evaluated in plain Python: what the matcher's Java and Spark are compared with."""
