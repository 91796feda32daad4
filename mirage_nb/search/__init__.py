"""The search: values saturated bottom-up, muGraphs extracted from them, sizes instantiated last."""
