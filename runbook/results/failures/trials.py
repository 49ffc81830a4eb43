"""Lists the remedies tried on a single machine.

A drill or a test causes the failure, and the run continues after the remedy. For faulty nodes, a
defect is created, and a preflight detects the defect and passes the healthy nodes. The nodes were
not checked again after each single defect had been removed.
"""

from dataclasses import dataclass

from runbook.results.failures import kinds
from runbook.results.failures.rule import FailureKind


@dataclass(frozen=True)
class Trial:
    """A trial in which a remedy was tested."""

    kind: FailureKind
    how: str
    place: str
    """Where to find the trial in order to repeat it: a drill (`runbook drill NAME`), a test, or a
    defect in tests/slurm/defects.py.
    """


TRIALS = (
    Trial(
        kinds.SHARED_MEMORY,
        "a node with /dev/shm of 16 MB fails a preflight; nodes with more pass",
        "defect shm",
    ),
    Trial(
        kinds.LIMITS,
        "a node with 300 open files fails a preflight; nodes with the usual limit pass",
        "defect nofile",
    ),
    Trial(
        kinds.RANK_HUNG,
        "the rank is killed after its stacks are saved, and the next job resumes",
        "drill 08-hang",
    ),
    Trial(
        kinds.INTERFACE,
        "a missing interface fails a preflight; nodes with the right interface pass",
        "defect no-interface",
    ),
    Trial(
        kinds.RENDEZVOUS,
        "a name that resolves to the node itself fails a preflight; nodes with correct names pass",
        "defect loopback-name",
    ),
    Trial(
        kinds.PORT,
        "ports held by a left-over program fail a preflight; nodes without it pass",
        "defect taken-port",
    ),
    Trial(
        kinds.DISK,
        "a training run stops on a full disk and continues when there is space",
        "drill 06-disk-full",
    ),
    Trial(
        kinds.STORAGE,
        "a run folder that is read-only on one node fails a preflight; nodes that can write pass",
        "defect read-only",
    ),
    Trial(
        kinds.COMPILE_CACHE,
        "a cache mounted noexec fails a preflight; nodes that use their own disk pass",
        "defect noexec",
    ),
    Trial(
        kinds.STALE_LOCK,
        "the lock of a dead process is taken over",
        "drill 10-stale-lock",
    ),
    Trial(
        kinds.CHECKPOINT_DAMAGE,
        "a damaged checkpoint is skipped and the previous one resumed",
        "drill 04-damaged-checkpoint",
    ),
    Trial(
        kinds.CHECKPOINT_FIT,
        "our own trainer resumes a checkpoint of another layout",
        "drill 13-other-layout",
    ),
    Trial(
        kinds.REFUSED_JOB,
        "a walltime over the partition's limit is refused; the job runs on another partition",
        "defect time-limit",
    ),
    Trial(
        kinds.PREEMPTED,
        "the job saves at the signal, and the next job resumes",
        "drill 07-preemption",
    ),
    Trial(
        kinds.KILLED,
        "a rank is killed, and the next job resumes",
        "drill 01-kill-rank",
    ),
    Trial(
        kinds.HOST_MEMORY,
        "a process that a memory limit kills succeeds without the limit",
        "test tests/results/test_remedies.py::test_host_memory_a_process_that_its_limit_stops_passes_without_the_limit",
    ),
    Trial(
        kinds.TIMEOUT,
        "with a longer limit, the other ranks wait for a rank that is 3 s late",
        "test tests/results/test_remedies.py::test_collective_timeout_a_longer_limit_lets_a_slow_step_end",
    ),
    Trial(
        kinds.COLLECTIVES_DIFFER,
        "two ranks with different tensor shapes are stopped; with equal shapes they succeed",
        "test tests/results/test_remedies.py::test_collectives_differ_tensors_of_one_shape_pass",
    ),
    Trial(
        kinds.PEER_DIED,
        "one log shows the lost connection, and the logs of both ranks show the cause",
        "test tests/results/test_remedies.py::test_another_rank_ended_first_the_logs_of_all_ranks_name_the_cause",
    ),
    Trial(
        kinds.NODE,
        "a node without power is excluded, and the training resumes on the others",
        "test tests/slurm/test_chain.py::test_the_lost_node_is_remembered_and_the_logbook_says_so",
    ),
    Trial(
        kinds.KERNEL,
        "an id outside a table is found in a table of the vocabulary's size",
        "test tests/results/test_remedies.py::test_device_fault_a_vocabulary_as_large_as_the_largest_id_ends_it",
    ),
    Trial(
        kinds.BUILD,
        "a source that includes Python.h compiles with Python's headers on the path",
        "test tests/results/test_remedies.py::test_extension_build_failed_pythons_headers_on_the_path_end_it",
    ),
    Trial(
        kinds.HANGING_BUILD,
        "a build that waits for a dead build's lock continues when the folder is deleted",
        "test tests/results/test_remedies.py::test_fused_kernel_build_hangs_deleting_its_folder_lets_it_go_on",
    ),
    Trial(
        kinds.ABI,
        "ldd names the missing library, and with the right LD_LIBRARY_PATH the program runs",
        "test tests/results/test_remedies.py::test_library_does_not_fit_ldd_names_it_and_the_right_path_finds_it",
    ),
    Trial(
        kinds.NAN,
        "a training run whose loss is NaN rolls back, continues with other samples, and finishes",
        "drill 11-bad-numbers",
    ),
    Trial(
        kinds.DATA,
        "damaged token files are refused by name, and intact ones are used",
        "drill 12-bad-data",
    ),
    Trial(
        kinds.CONFIGURATION,
        "runbook check refuses a layout that does not divide the processes, and accepts the "
        "corrected one",
        "test tests/results/test_remedies.py::test_settings_do_not_fit_check_finds_them_before_a_job",
    ),
    Trial(
        kinds.TIME_LIMIT,
        "with an exit_duration, a training run saves and stops before its limit",
        "test tests/training/test_resume.py::test_the_clock_stops_a_run_like_a_signal",
    ),
    Trial(
        kinds.CANCELLED,
        "the job after a scancel has the losses of an uninterrupted training run",
        "test tests/slurm/test_chain.py::test_the_losses_are_those_of_an_undisturbed_training",
    ),
    Trial(
        kinds.LAUNCHER,
        "MPICH's mpiexec refuses Open MPI's -x and starts the ranks with --env",
        "test tests/results/test_remedies.py::test_launcher_failed_the_option_of_the_sites_mpi_starts_the_ranks",
    ),
    Trial(
        kinds.FILE,
        "a program with a misspelt path runs with the right path",
        "test tests/results/test_remedies.py::test_no_such_file_the_right_path_runs",
    ),
    Trial(
        kinds.HUB,
        "offline, a file in HF_HOME is used; without it the hub is unreachable",
        "test tests/results/test_remedies.py::test_hub_out_of_reach_a_folder_of_the_login_node_and_offline_mode_end_it",
    ),
    Trial(
        kinds.NOTEBOOK,
        "a notebook whose kernel does not exist runs with one that kernelspec list names",
        "test tests/results/test_remedies.py::test_notebook_kernel_kernelspec_list_names_one_that_runs",
    ),
    Trial(
        kinds.PROGRAM_ENDED,
        "the first frame after the signal names the call",
        "test tests/results/test_remedies.py::test_process_ended_by_a_signal_the_first_frame_says_where",
    ),
    Trial(
        kinds.LOSS_SCALE,
        "gradients that overflow in fp16 at DeepSpeed's smallest scale are finite in bf16",
        "test tests/results/test_remedies.py::test_loss_scale_at_its_floor_what_overflows_in_fp16_is_finite_in_bf16",
    ),
    Trial(
        kinds.UNREACHED,
        "srun fails while a node's slurmd is down, and starts the ranks when it is back",
        "test tests/slurm/test_remedies_on_slurm.py::test_node_out_of_reach_a_node_that_has_come_back_starts_the_ranks",
    ),
    Trial(
        kinds.SSH,
        "srun starts ranks on a node that does not answer ssh",
        "test tests/slurm/test_remedies_on_slurm.py::test_launcher_needs_ssh_srun_starts_ranks_where_no_node_answers_it",
    ),
    Trial(
        kinds.OWN_ERROR,
        "the named line is corrected, and the program runs",
        "test tests/results/test_remedies.py::test_the_programs_own_error_the_line_named_is_the_one_to_correct",
    ),
    Trial(
        kinds.MODULE,
        "a module is missing in another Python; the prepared Python has it",
        "test tests/results/test_remedies.py::test_module_missing_the_python_that_was_prepared_has_it",
    ),
)


def trial_of(kind: FailureKind) -> Trial | None:
    """Return the trial for this kind of failure, or None if the remedy was not tried."""
    return next((trial for trial in TRIALS if trial.kind == kind), None)
