"""What can become of a question to another machine, whatever Ray calls it."""

from __future__ import annotations


class HomeLost(Exception):
    """The home is gone for good, or nothing will ever be heard of it: the device has to be opened anew."""


class AnswerLost(Exception):
    """The answer was lost on its way, or perhaps the question: it can be asked again, with the same number."""


class NoRoom(Exception):
    """There is no memory for what would have to travel."""


class HomeRefused(Exception):
    """The home could not be made there."""
