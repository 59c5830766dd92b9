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
