"""The layers, modules and contestants of `bench models` and `bench modules`."""
