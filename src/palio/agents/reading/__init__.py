"""Reading a request: from the text alone to items, values, prices, services and voucher."""

from palio.agents.reading.reader import read_request
from palio.agents.reading.wanted import Wanted, WantedItem, WantedVoucher

__all__ = ["Wanted", "WantedItem", "WantedVoucher", "read_request"]
