"""The reference pages that are written from the code."""
