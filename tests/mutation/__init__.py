"""Tests of the tests: changed code that the tests of its subject must notice."""
