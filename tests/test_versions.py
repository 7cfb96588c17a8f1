"""The lower bounds of pyproject.toml are the versions that `make oldest` installs, and CI runs it."""

import re
import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from .conftest import REPOSITORY

OLDEST = REPOSITORY / "constraints-oldest.txt"


def lowest(requirement: Requirement) -> Version:
    (bound,) = (part for part in requirement.specifier if part.operator in (">=", "=="))
    return Version(bound.version.removesuffix(".*"))


def test_every_lower_bound_is_tested() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["dashboard"], *extras["cluster"]]
    bounds = {
        canonicalize_name(requirement.name): lowest(requirement)
        for requirement in map(Requirement, named)
    }
    pins = re.findall(r"^([\w.-]+)==(\S+)$", OLDEST.read_text(), re.M)
    assert {canonicalize_name(name): Version(version) for name, version in pins} == bounds


def test_ci_runs_both_ends_vllm_verifiers_and_the_harness() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/ci.yml").read_text())
    job = workflow["jobs"]["environments"]
    targets = re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.M)
    in_ci = job["strategy"]["matrix"]["target"]
    own = ["test-vllm", "test-environments", "test-lm-eval"]
    assert in_ci == ["oldest", "canary", *own]
    assert {*in_ci} <= {*targets}
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make ${{ matrix.target }}"]
