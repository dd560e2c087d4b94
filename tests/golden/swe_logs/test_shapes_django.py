"""Every shape of outcome that django's runner has a word for."""
import unittest

from django.test import SimpleTestCase


class ShapeTests(SimpleTestCase):
    def test_passes(self):
        pass

    def test_described(self):
        """A docstring takes the name's line"""

    def test_fails(self):
        self.assertEqual(1, 2)

    def test_errors(self):
        raise RuntimeError("broken")

    @unittest.skip("not today")
    def test_skips(self):
        pass

    @unittest.expectedFailure
    def test_fails_as_expected(self):
        self.fail()

    def test_talks(self):
        print("output of the program")
