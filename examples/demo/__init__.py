"""Where to put copper under a board of chips so that the board lives longest.

Four programs that know nothing of each other, and one gradient over all of them:

1. `layout/component.py`       NumPy, derivatives by hand, served over HTTP: copper patches → conductivity;
2. `heat/component.py`         SciPy, a sparse implicit solve with its adjoint, in its own process:
                               conductivity → temperature of every chip;
3. `reliability/reliability.c` a C program that reads and writes JSON, differentiated by finite differences:
                               temperatures → failure rates;
4. the cost in plain JAX       failure rates and copper → one number.

`python -m examples.demo` (or `make demo`) checks the gradient, optimises the layout with optax and leaves
a plot and a report in `demo-output/`.
"""
