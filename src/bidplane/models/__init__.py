"""
Models over HTTP, each dialect in one file: `openai` (any OpenAI-style endpoint) and `anthropic`.

A model is asked one question and gives one text, within a time and a size. No SDK is needed. What
the text means is decided elsewhere (`core.minds`).
"""
