"""CEL: syntax tree, limits, and the one evaluator, cel-cpp."""
