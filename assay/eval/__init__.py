"""Measuring a search on judged queries: collections in the usual formats, ir-measures' metrics, paired comparison."""
