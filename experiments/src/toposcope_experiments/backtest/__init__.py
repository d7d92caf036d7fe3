"""How well the forecasters predict runs whose end is known: the page of a backtest."""
