"""The error of the readers and samplers."""

from edbatch.errors import EdbatchError


class DataError(EdbatchError, ValueError):
    """Data that cannot be read, or a request for data that cannot be met.

    The message says where (file, line, column), what the rule is, what was found,
    what the usual cause is and how to mend it.

    Example:
        >>> from edbatch.data import parse_trees
        >>> try:
        ...     parse_trees("(S (NN dog)")
        ... except DataError as error:
        ...     print(str(error).split(";")[0])
        <text>, line 1, column 12: every '(' must be closed
    """
