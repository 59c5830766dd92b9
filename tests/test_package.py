"""What the distribution says of itself."""

import importlib.metadata

import mq


def test_the_version_is_the_one_of_the_installed_distribution() -> None:
    assert mq.__version__ == importlib.metadata.version("mq")


def test_the_licence_comes_with_the_distribution() -> None:
    distribution = importlib.metadata.distribution("mq")
    assert distribution.metadata["License-Expression"] == "Apache-2.0"
    [licence] = [path for path in distribution.files or () if path.name == "LICENSE"]
    assert "Version 2.0, January 2004" in licence.read_text()


def test_the_classifiers_name_the_versions_of_python_from_the_oldest_on() -> None:
    metadata = importlib.metadata.metadata("mq")
    prefix = "Programming Language :: Python :: 3."
    versions = [
        each.removeprefix(prefix) for each in metadata.get_all("Classifier", []) if each.startswith(prefix)
    ]
    assert versions == ["10", "11", "12", "13"]
    assert metadata["Requires-Python"] == f">=3.{versions[0]}"
