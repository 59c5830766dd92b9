"""The one thing pyproject.toml cannot say: the C extension that cffi builds."""

from setuptools import setup

setup(cffi_modules=["mq/store/native/build.py:ffibuilder"])
