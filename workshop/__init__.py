"""What stands behind `./dev`: the environment, the checks and the three passes of the test suite.

`environment.py` runs on a bare Python with nothing installed and makes `.venv`; everything else runs in it.
"""
