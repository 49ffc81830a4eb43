"""Storage: the Azure table in consistent units, sizes compared with the plan, deployment files, and
the documents' timings.
"""

import pytest
import yaml
from sites import PROJECT, settings_of
from suite.messages import check_about, containing, says
from suite.scripts import environment_of
from write_pages import MODELS, storage_page

from runbook.core.errors import PlanError
from runbook.jobs.render.preparation import preparation_files
from runbook.phases.run_plan import load_plan, plan_text
from runbook.planning import make_plan
from runbook.planning.messages import PlanningMessage
from runbook.planning.plan_tables import documents_table
from runbook.planning.rule_codes import PlanCode
from runbook.planning.site_limits import LEAST_WRITE_TIME, STATED_WRITE_TIME, tier_table


def test_the_documents_times_are_too_short():
    site = settings_of("azure-175b").site
    rows = tier_table(site, MODELS["175B"], "fp16").rows
    least = ["2.12 min", "0.64 min", "0.32 min", "0.16 min"]
    assert [row[LEAST_WRITE_TIME] for row in rows] == least
    stated = ["2.04 min (-3.9%)", "0.61 min (-4.2%)", "0.31 min (-2.6%)", "0.15 min (-5.8%)"]
    assert [row[STATED_WRITE_TIME] for row in rows] == stated
    assert rows[0]["tier"] == "AMLFS 40"
    assert rows[0]["checkpoint"].split(" = ") == ["2.445 TB", "2.223 TiB"]
    # The 2.3 TiB from the document in consistent units, as its text should have stated.
    assert round(2.3 * 2**40 / 19.2e9 / 60, 2) == 2.2


def test_any_model_has_its_times_and_no_stated_ones():
    site = settings_of("azure-175b").site
    rows = tier_table(site, MODELS["13B"], "fp16").rows
    assert rows[0][LEAST_WRITE_TIME] == "0.16 min"  # 9.37 s
    assert {row[STATED_WRITE_TIME] for row in rows} == {""}


def test_the_page_is_up_to_date():
    assert (PROJECT / "docs" / "storage.md").read_text() == storage_page()


def test_data_and_checkpoints_are_held_against_the_storage():
    azure = make_plan(settings_of("azure-175b"))
    assert check_about(azure.checks, PlanCode.VOLUME_FITS).verdict == "pass"
    aws = make_plan(settings_of("aws-pile-175b:real-srun"))
    parts = containing("TiB", "checkpoints")
    check = check_about(aws.checks, PlanCode.VOLUME_FITS, parts=parts, size="4.69 TiB")
    least = check.values["least"]
    assert (check.verdict, check.remedy) == (
        "warn",
        PlanCode.VOLUME_FITS.message.remedy.format(least=least),
    )
    assert least == "14.7 TiB"
    with pytest.raises(PlanError) as caught:
        make_plan(settings_of("azure-175b", "jobs.storage=AMLFS 99"))
    tiers = containing("AMLFS 40, AMLFS 125")
    check_about(caught.value.checks, PlanCode.STORAGE_TIER, tier="AMLFS 99", tiers=tiers)


def test_what_a_person_deploys_with_is_written():
    text = preparation_files(settings_of("azure-175b", "jobs.storage=AMLFS 250"))["deployment.env"]
    environment = environment_of(text)
    assert environment["GPU_SKU"] == "Standard_ND96isr_H100_v5"
    assert environment["ANF_SIZE"] == "4"
    assert environment["AMLFS_SKU"] == "AMLFS-Durable-Premium-250"
    assert environment["AMLFS_SIZE"] == "512"
    entries = yaml.safe_load(
        preparation_files(settings_of("aws-pile-175b"))["shared-storage.yaml"]
    )["SharedStorage"]
    assert entries[0]["FsxLustreSettings"] == {
        "StorageCapacity": 4800,
        "DeploymentType": "SCRATCH_2",
    }
    assert entries[1]["EbsSettings"] == {
        "VolumeType": "gp3",
        "Size": 200,
        "Throughput": 300,
        "Iops": 6000,
    }
    assert preparation_files(settings_of("lumi-13b")) == {}


def test_the_documents_own_numbers_stand_beside_the_plan():
    settings = settings_of("aws-pile-175b")
    rows = documents_table(settings.site, make_plan(settings)).rows
    times = [("702 GiB", "19 min 9 s"), ("397 GiB", "10 h 30 min")]
    copied, read = (
        PlanningMessage.BYTES_IN_TIME.fill(size=size, time=time) for size, time in times
    )
    assert (rows[0]["the document"], rows[0]["rate"]) == (copied, "656 MB/s")
    assert rows[1]["the document"].split() == ["2", "min", "51", "s"]
    assert rows[2]["the document"] == read
    text = plan_text(*load_plan("azure-175b", ()))
    batch = {"per_device": 16, "devices": 128, "sequences": 2048}
    assert says(text, PlanningMessage.ADVISED_BATCH, **batch)
    assert says(text, PlanningMessage.TIER_TABLE, parameters="175 B")
