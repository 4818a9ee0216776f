"""Mistakes that the tests must find: each is planted in a copy of fedvi, and tests are run there."""
