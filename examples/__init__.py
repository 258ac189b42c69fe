"""Runnable components and pipelines; each has a test."""
