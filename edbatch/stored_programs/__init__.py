"""Lowered programs, kept between processes: a second one traces none of them."""
