"""Text to verified .bin/.idx: sources, the fused pipeline, indexed files."""

from runbook.tokens.indexed_files import IndexedReader as IndexedReader
from runbook.tokens.pipeline.options import TokenizeOptions as TokenizeOptions
from runbook.tokens.pipeline.options import read_manifest as read_manifest
from runbook.tokens.pipeline.progress import DataProgress as DataProgress
from runbook.tokens.pipeline.tokenize import prepare as prepare
from runbook.tokens.pipeline.tokenize import prepare_share as prepare_share
from runbook.tokens.verification import sample_documents as sample_documents
from runbook.tokens.verification import verify as verify
