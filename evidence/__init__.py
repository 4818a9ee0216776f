"""Every claim of the founding papers, run again: one script a claim, one page made of their results.

    python -m evidence                      # whatever has no result yet
    python -m evidence advi_abalone --again # one claim, anew
    python -m evidence --quick              # a cut version of all, into build/evidence/quick
    python -m evidence --check              # does the page say what the result files say?

To add a claim, write ``evidence/claims/NAME.py`` with a `Claim` named ``CLAIM``, and list it in
``evidence/claims/__init__.py``.
"""
