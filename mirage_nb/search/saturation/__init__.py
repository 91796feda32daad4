"""One kernel: its values, saturated bottom-up with the oracle's help, and the muGraphs read off them."""
