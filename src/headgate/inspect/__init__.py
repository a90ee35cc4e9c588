"""What became of an event, read from the files in which the processes write it down. Changes nothing."""
