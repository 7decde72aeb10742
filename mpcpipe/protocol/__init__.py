"""The protocols, a folder each, behind one interface of coroutines."""
