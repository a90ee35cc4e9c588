"""The tables of control.db: objects, their history, generations, and what is kept beside them."""
