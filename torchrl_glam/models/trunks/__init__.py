"""Trunks: one pass of a language model over a state's prompt and candidate actions.

They read a token trie of the candidates, and are compared with the model's own forward before use.
"""
