"""Lets the tests import from this folder."""
