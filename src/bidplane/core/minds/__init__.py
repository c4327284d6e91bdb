"""
Minds of the pilot: from an observation of the fleet to intended actions, each with evidence.

A mind decides nothing: what it intends becomes Proposals, and the gate judges them. `rules` needs
no model.
"""
