"""
The gate at work: verdicts on writes to the host and on Proposals, each in the audit first.

`service` judges and records, `actors` tells who asks, `applying` carries an allowed action out.
What decides is `core/gate`; the plane asks before it writes, the proposal controller before it
applies.
"""
