"""What each guest of a table pays."""
from billing.shares import split


class Table:
    def __init__(self):
        self._orders = {}

    def order(self, guest, cents):
        self._orders[guest] = self._orders.get(guest, 0) + cents

    def bill(self, tip_percent=0):
        """Cents per guest: own orders, and the tip in proportion to them."""
        guests = list(self._orders)
        amounts = [self._orders[g] for g in guests]
        tip = sum(amounts) * tip_percent // 100
        tips = split(tip, amounts) if tip else [0] * len(guests)
        return {g: a + t for g, a, t in zip(guests, amounts, tips)}
