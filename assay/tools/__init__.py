"""The tools that an agent sees: typed objects with JSON schemas, in one registry, within the scope of a request."""

from assay.tools.base import Tool as Tool
from assay.tools.base import ToolContext as ToolContext
from assay.tools.base import ToolOutput as ToolOutput
from assay.tools.registry import Registry as Registry
