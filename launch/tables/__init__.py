"""Tables of methods: their rows, the runs behind them, the paper's figures."""
