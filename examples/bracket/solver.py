"""Plane stress of a plate, by scikit-fem, with an adjoint by hand."""

import numpy as np
import skfem
from pydantic import BaseModel, Field
from skfem.helpers import ddot, div, eye, sym_grad, trace

from chainrule.runtime import Array, Differentiable, Float64, Int64

Points = Array[("n", 2), Float64]


class InputSchema(BaseModel):
    """A mesh, where it is held and where it is loaded."""

    points: Differentiable[Points] = Field(
        description="Corners of the triangles, in metres"
    )
    triangles: Array[("m", 3), Int64] = Field(
        description="Three corners each"
    )
    clamped: Array[("c",), Int64] = Field(
        description="Points that do not move"
    )
    loads: Points = Field(
        description="Force on every point, N per metre of thickness"
    )
    young: Float64 = Field(
        70e9, gt=0, description="Young's modulus, in pascals"
    )
    poisson: Float64 = Field(
        0.33, gt=-1, lt=0.5, description="Poisson's ratio"
    )


class OutputSchema(BaseModel):
    """What the load does to the plate."""

    compliance: Differentiable[Float64] = Field(
        description="Work of the load, in J/m"
    )
    area: Differentiable[Float64] = Field(
        description="Area of the plate, in square metres"
    )
    points: Points = Field(
        description="Where the points are under the load"
    )
    triangles: Array[("m", 3), Int64]
    stress: Array[("m",), Float64] = Field(
        description="Von Mises stress of each triangle, in Pa"
    )


class _Plate:
    """The finite-element problem of one set of inputs, solved."""

    def __init__(self, inputs):
        mesh = skfem.MeshTri(
            inputs.points.T.copy(), inputs.triangles.T.copy()
        )
        self.basis = skfem.Basis(
            mesh, skfem.ElementVector(skfem.ElementTriP1()), intorder=1
        )
        self.shear = inputs.young / (2 * (1 + inputs.poisson))
        self.bulk = inputs.young * inputs.poisson / (1 - inputs.poisson**2)
        stiffness = skfem.BilinearForm(
            lambda u, v, w: ddot(self.sigma(u), sym_grad(v))
        )
        held = self.basis.nodal_dofs[:, inputs.clamped].ravel()
        load = inputs.loads.ravel()
        system = skfem.condense(
            stiffness.assemble(self.basis), load, D=held
        )
        self.displacement = skfem.solve(*system)
        self.compliance = float(load @ self.displacement)

    def sigma(self, u):
        strain = sym_grad(u)
        return 2 * self.shear * strain + self.bulk * eye(trace(strain), 2)

    def stress(self):
        s = self.sigma(self.basis.interpolate(self.displacement))[..., 0]
        return np.sqrt(
            s[0, 0] ** 2
            - s[0, 0] * s[1, 1]
            + s[1, 1] ** 2
            + 3 * s[0, 1] ** 2
        )

    def slopes(self, of_compliance, of_area):
        """How compliance and area change with the points.

        With K u = f and a load f that moves along with its points, the
        work c = fᵀu has dc = -uᵀ dK u. Points that move with the velocity
        V change the integral of a strain energy e by
        ∫ (e div V - 2 σ : (∇u ∇V)): the area grows, and the gradients
        become flatter.
        """
        u = self.basis.interpolate(self.displacement)

        def form(v, w):
            energy = ddot(self.sigma(u), sym_grad(u))
            flatter = np.einsum(
                "ij...,ik...,kj...->...", self.sigma(u), u.grad, v.grad
            )
            return of_area * div(v) - of_compliance * (
                energy * div(v) - 2 * flatter
            )

        return skfem.LinearForm(form).assemble(self.basis)


def apply(inputs: InputSchema) -> OutputSchema:
    plate = _Plate(inputs)
    return OutputSchema(
        compliance=plate.compliance,
        area=float(np.sum(plate.basis.dx)),
        points=inputs.points + plate.displacement.reshape(-1, 2),
        triangles=inputs.triangles,
        stress=plate.stress(),
    )


def vector_jacobian_product(
    inputs, vjp_inputs, vjp_outputs, cotangent_vector
):
    weights = (
        float(cotangent_vector.get(name, 0.0))
        for name in ("compliance", "area")
    )
    return {"points": _Plate(inputs).slopes(*weights).reshape(-1, 2)}
