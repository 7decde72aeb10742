"""protocol/plaintext"""
