"""How well the forecasters predict runs whose end is known: a backtest, its scores and its page."""
