"""Natural parameters, which clients and server exchange; a new family is one new file listed here."""

from fedvi.expfam.gaussian import diagonal_gaussian, full_gaussian

__all__ = ["diagonal_gaussian", "full_gaussian"]
