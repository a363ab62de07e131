"""Serving over HTTP: a model with its JSON, limits, health, metrics, a status page.

A module of yours defines a `Service`, and ``edbatch serve --model your_module:service``
runs it. The packages that this needs come with ``pip install 'edbatch[serve]'``;
`Service` by itself needs none of them.

Gain: no speed of its own. Without it, a program in another process or language reaches
a model only through a server that its author writes, with limits and deadlines.
"""

from edbatch.errors import ServiceError
from edbatch.http.as_json import as_json
from edbatch.http.service import Service

__all__ = ["Service", "ServiceError", "as_json"]
