"""From a study file to a running federation: the only package that knows concrete classes."""

__all__: list[str] = []
