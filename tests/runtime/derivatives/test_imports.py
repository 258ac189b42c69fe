import subprocess
import sys


def test_derivatives_and_checks_import_no_framework():
    program = (
        "import sys, chainrule.runtime.derivatives, chainrule.runtime.testing\n"
        "import chainrule.runtime.experimental\n"
        "found = {'jax', 'torch', 'equinox', 'scipy'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
