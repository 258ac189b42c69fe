"""Pictures of what the other rooms know: tables for the terminal, plots for people."""

from chainrule.view._gradient_flow import FlowRow, GradientFlow, gradient_flow

__all__ = ["FlowRow", "GradientFlow", "gradient_flow"]
