"""Serving over HTTP: JSON schemas, limits, health checks, metrics, a status page.

Define a `Service` in a module of your own, and run it with
``edbatch serve --model your_module:service``. The required packages come with
``pip install 'edbatch[serve]'``; `Service` itself needs none of them.

Gain: not speed, but access from other processes and languages. Without it, users have
to write an HTTP server of their own, with limits and deadlines.
"""

from edbatch.errors import ServiceError
from edbatch.http.as_json import as_json
from edbatch.http.service import Service

__all__ = ["Service", "ServiceError", "as_json"]
