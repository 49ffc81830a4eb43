"""Storage: the Azure table in honest units, sizes against the plan, deployment files, the documents' timings."""

import pytest
import yaml
from sites import PROJECT, settings_of
from write_pages import MODELS, storage_page

from runbook.core.errors import PlanError
from runbook.jobs.render.preparation import preparation_files
from runbook.phases.run_plan import load_plan, plan_text
from runbook.planning import make_plan
from runbook.planning.plan_tables import documents_table
from runbook.planning.site_limits import tier_table


def test_the_documents_times_are_too_short():
    site = settings_of("azure-175b").site
    rows = tier_table(site, MODELS["175B"], "fp16").rows
    assert [row["least time to write"] for row in rows] == [
        "2.12 min",
        "0.64 min",
        "0.32 min",
        "0.16 min",
    ]
    said = ["2.04 min (-3.9%)", "0.61 min (-4.2%)", "0.31 min (-2.6%)", "0.15 min (-5.8%)"]
    assert [row["the document says"] for row in rows] == said
    assert (rows[0]["tier"], rows[0]["checkpoint"]) == ("AMLFS 40", "2.445 TB = 2.223 TiB")
    # Its own 2.3 TiB, in one unit: what the text should have said.
    assert round(2.3 * 2**40 / 19.2e9 / 60, 2) == 2.2


def test_any_model_has_its_times_and_no_stated_ones():
    site = settings_of("azure-175b").site
    rows = tier_table(site, MODELS["13B"], "fp16").rows
    assert rows[0]["least time to write"] == "0.16 min"  # 9.37 s
    assert {row["the document says"] for row in rows} == {""}


def test_the_page_is_up_to_date():
    assert (PROJECT / "docs" / "storage.md").read_text() == storage_page()


def check_of(name, *words):
    return next(
        one for one in make_plan(settings_of(name, *words)).checks if one.name.startswith("volume")
    )


def test_data_and_checkpoints_are_held_against_the_storage():
    assert check_of("azure-175b").verdict == "pass"
    aws = check_of("aws-pile-175b:real-srun")
    assert aws.verdict == "warn" and "TiB of checkpoints on 4.69 TiB" in aws.value
    assert "Deploy at least" in aws.remedy
    with pytest.raises(
        PlanError, match=r"jobs\.storage=AMLFS 99.*The tiers are: AMLFS 40, AMLFS 125"
    ):
        make_plan(settings_of("azure-175b", "jobs.storage=AMLFS 99"))


def test_what_a_person_deploys_with_is_written():
    text = preparation_files(settings_of("azure-175b", "jobs.storage=AMLFS 250"))["deployment.env"]
    assert "export GPU_SKU=Standard_ND96isr_H100_v5\n" in text
    assert "export ANF_SIZE=4\n" in text
    assert "export AMLFS_SKU=AMLFS-Durable-Premium-250\nexport AMLFS_SIZE=512\n" in text
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
    assert rows[0]["the document"] == "702 GiB in 19 min 9 s" and rows[0]["rate"] == "656 MB/s"
    assert rows[1]["the document"] == "2 min 51 s"
    assert rows[2]["the document"] == "397 GiB in 10 h 30 min"
    text = plan_text(*load_plan("azure-175b", ()))
    assert (
        "16 x 128 devices = 2,048 sequences" in text
        and "A checkpoint of 175 B parameters by storage tier" in text
    )
