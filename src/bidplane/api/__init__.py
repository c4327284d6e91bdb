"""
The nouns: frozen structs that are also the schemas of our CRDs. Imports nothing but `errors`.
"""
