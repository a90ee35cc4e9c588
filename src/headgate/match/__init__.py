"""Matching events with filters in Spark; the only room that imports PySpark."""
