"""Assay: agentic search over private document collections. This package is the pure core: it imports no ray and no vllm."""

__version__ = "0.1.0"
