"""Recursive descent: sum -> product -> power -> signed -> atom."""
from calc.tokens import tokens


class _Parser:
    def __init__(self, text):
        self.tokens = tokens(text)
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self):
        token = self.peek()
        self.at += 1
        return token

    def sum(self):
        value = self.product()
        while self.peek() in ("+", "-"):
            if self.take() == "+":
                value += self.product()
            else:
                value -= self.product()
        return value

    def product(self):
        value = self.power()
        while self.peek() in ("*", "/"):
            if self.take() == "*":
                value *= self.power()
            else:
                value /= self.power()
        return value

    def power(self):
        value = self.signed()
        while self.peek() == "^":
            self.take()
            value = value ** self.signed()
        return value

    def signed(self):
        if self.peek() == "-":
            self.take()
            return -self.signed()
        return self.atom()

    def atom(self):
        token = self.take()
        if isinstance(token, float):
            return token
        if token == "(":
            value = self.sum()
            if self.take() != ")":
                raise SyntaxError("a parenthesis is not closed")
            return value
        raise SyntaxError(f"unexpected {token!r}")


def evaluate(text):
    parser = _Parser(text)
    value = parser.sum()
    if parser.peek() is not None:
        raise SyntaxError(f"unexpected {parser.peek()!r}")
    return value
