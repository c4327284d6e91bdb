"""
Drivers make and end planes.
"""
