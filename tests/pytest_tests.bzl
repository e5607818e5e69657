load("@rules_python//python:defs.bzl", "py_library", "py_test")

def pytest_tests(deps, data = []):
    """Makes a py_test of each *_test.py of a folder, run by pytest.

    The other sources of the folder are its library `helpers`.
    """
    py_library(
        name = "helpers",
        testonly = True,
        srcs = native.glob(
            ["*.py"],
            allow_empty = True,
            exclude = [
                "*_test.py",
                "run_pytest.py",
            ],
        ),
        visibility = ["//tests:__subpackages__"],
        deps = deps,
    )
    for test in native.glob(["*_test.py"]):
        py_test(
            name = test[:-len(".py")],
            timeout = "long",
            srcs = [
                test,
                "//tests:run_pytest.py",
            ],
            args = ["$(rootpath %s)" % test],
            data = data + ["//:pyproject.toml"],
            main = "//tests:run_pytest.py",
            deps = [":helpers"] + deps,
        )
