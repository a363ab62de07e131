"""Files of policies and costs: reading, checking and atomic writing."""
