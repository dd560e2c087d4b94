"""A parameter that enums print by name on the Pythons of that time."""
import pytest
from matplotlib.backend_bases import MouseButton

BUTTONS = [MouseButton.LEFT, MouseButton.RIGHT, MouseButton.MIDDLE]


@pytest.mark.parametrize("button", BUTTONS, ids=[f"MouseButton.{b.name}" for b in BUTTONS])
def test_button(button):
    assert button != MouseButton.RIGHT
