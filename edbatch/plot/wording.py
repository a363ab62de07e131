"""Numbers in titles and labels."""


def counted(count: int, one: str, many: str = "") -> str:
    """Writes how many there are.

    Args:
        count: The number.
        one: The noun for one.
        many: The noun for several; with an s by default.

    Returns:
        Number and noun.

    Example:
        >>> counted(1, "state"), counted(2000, "step"), counted(2, "batch", "batches")
        ('1 state', '2,000 steps', '2 batches')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"
