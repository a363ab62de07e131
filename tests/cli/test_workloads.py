"""`edbatch workloads`."""

import json

from edbatch.models import WORKLOADS, get_workload


def test_the_help_names_every_workload(edbatch) -> None:
    words = edbatch("run", "--help").stdout.replace("│", " ").split()
    assert {*WORKLOADS} <= {word.strip(",.") for word in words}


def test_each_workload_is_listed_with_what_it_reads(edbatch) -> None:
    listed = edbatch("workloads").stdout.replace("│", " ").split()
    found = json.loads(edbatch("workloads", "--json").stdout)
    assert [each["workload"] for each in found] == [*WORKLOADS]
    for each in found:
        workload = get_workload(each["workload"])
        assert each["workload"] in listed
        assert each["description"] == workload.description
        assert each["reads"] == workload.reads
