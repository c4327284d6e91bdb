"""
Commands about nodes and GPUs: `fleet`, `top`, and `node`, which makes this machine a node.
`toprows` computes the rows that `top` shows. All but `node` only read.
"""
