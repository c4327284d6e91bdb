"""The nouns of idle services: the ladder of an Endpoint. Structs only; no imports of ours."""
