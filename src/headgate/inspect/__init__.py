"""What became of an event, read from the files of the processes that deliver it. Changes nothing."""
