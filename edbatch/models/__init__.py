"""Ready cells and models, each written for one instance."""
