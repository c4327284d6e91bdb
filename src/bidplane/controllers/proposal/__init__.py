"""Carries each Proposal through its life: verdict, wait, application, measurement."""

from __future__ import annotations

from bidplane.controllers.proposal.controller import ProposalController

__all__ = ["ProposalController"]
