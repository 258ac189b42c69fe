"""Currents between the cells of a plate, of charge or of heat.

Every face carries a current g (Dφ + e). D takes differences between the
cells of a face, e is what an electrode adds, and g is the conductance, the
mean of that of the cells beside the face.
"""

import numpy as np
import scipy.sparse as sp


def _differences(n):
    return sp.diags([-1.0, 1.0], [0, 1], shape=(n - 1, n))


def faces(rows, columns):
    """D of the faces inside the plate."""
    return sp.vstack(
        [
            sp.kron(_differences(rows), sp.identity(columns)),
            sp.kron(sp.identity(rows), _differences(columns)),
        ]
    ).tocsr()


def electrodes(rows, columns, voltage):
    """D and e with electrodes at the left (0 V) and the right."""
    left = sp.kron(
        sp.identity(rows), sp.csr_matrix(([1.0], ([0], [0])), (1, columns))
    )
    right = sp.kron(
        sp.identity(rows),
        sp.csr_matrix(([-1.0], ([0], [columns - 1])), (1, columns)),
    )
    inside = faces(rows, columns)
    added = np.r_[np.zeros(inside.shape[0] + rows), np.full(rows, voltage)]
    return sp.vstack([inside, left, right]).tocsr(), added


def means(differences):
    """The matrix of means over the cells of each face."""
    count = np.asarray(abs(differences).sum(axis=1)).ravel()
    return sp.diags(1 / count) @ abs(differences)
