"""Records of cdfd's topics as rows of Spark, one module a format."""
