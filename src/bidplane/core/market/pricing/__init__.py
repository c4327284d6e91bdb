"""Prices: the reserve, rent, money at the win, instant sales, and why a bid lost. Pure."""
