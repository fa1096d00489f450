"""Sub-task traces become agentic ones: replayed, derivable, and marked for ever as salvaged.

The pipeline is in `salvage.run`; here is only the mark, since files and reports ask for it.
"""

from palio.corpus.salvage.mark import AGENT_MARK, SOURCE_MARK, salvaged_from

__all__ = ["AGENT_MARK", "SOURCE_MARK", "salvaged_from"]
