"""
Reports from the ledger: a wallet's statement, chargeback between two times, the books as CSV or
Parquet. They only read, and their sums are the ledger's.
"""
