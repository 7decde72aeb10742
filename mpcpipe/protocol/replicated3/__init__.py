"""protocol/replicated3"""
