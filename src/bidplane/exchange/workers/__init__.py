"""
Processes beside the exchange's own: they read history and evaluate selectors, so that a round
waits for neither.
"""
