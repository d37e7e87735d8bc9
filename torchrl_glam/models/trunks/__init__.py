"""Trunks: one pass of a language model over a state's prompt and candidate actions.

The fast way reads a token trie of the candidates; models that take none are read one candidate at a
time. Each way is compared with the model's own forward before it is used.
"""
