"""An independent verifier: it shares no code with what it checks, and names every leak it finds.

Only the standard library, msgspec and pyarrow are used. It reads the published files of a corpus,
computes keys, similarities and clusters again from their description in docs/leak-guard.md, and
compares the pools and the certificate with them.
"""

from palio.corpus.verify.folder import verify
from palio.corpus.verify.shapes import Finding, Verification

__all__ = ["Finding", "Verification", "verify"]
