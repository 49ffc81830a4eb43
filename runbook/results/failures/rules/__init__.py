"""All rules. Specific rules come before general rules, since the first match is used."""

from runbook.results.failures.rules.data import COMMAND_RULES, DATA_RULES, FILE_SYSTEM_RULES
from runbook.results.failures.rules.devices import DEVICE_RULES
from runbook.results.failures.rules.endings import ENDING_RULES
from runbook.results.failures.rules.fallbacks import FALLBACK_RULES
from runbook.results.failures.rules.jobs import JOB_RULES
from runbook.results.failures.rules.memory import MEMORY_RULES
from runbook.results.failures.rules.network import NETWORK_RULES
from runbook.results.failures.rules.programs import PROGRAM_RULES
from runbook.results.failures.rules.runtimes import RUNTIME_RULES
from runbook.results.failures.rules.sentences import SENTENCE_RULES
from runbook.results.failures.rules.services import SERVICE_RULES
from runbook.results.failures.rules.software import SOFTWARE_RULES

RULES = (
    *COMMAND_RULES,
    *SENTENCE_RULES,
    *RUNTIME_RULES,
    *SERVICE_RULES,
    *FILE_SYSTEM_RULES,
    *MEMORY_RULES,
    *DEVICE_RULES,
    *SOFTWARE_RULES,
    *JOB_RULES,
    *NETWORK_RULES,
    *DATA_RULES,
    *PROGRAM_RULES,
    *ENDING_RULES,
    *FALLBACK_RULES,
)
