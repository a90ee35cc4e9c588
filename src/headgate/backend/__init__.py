"""Stores of events: the embedded log and Kafka behind one interface."""
