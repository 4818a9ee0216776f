"""Transports messages: a link takes a request to the coordinator and brings back the reply."""

__all__: list[str] = []
