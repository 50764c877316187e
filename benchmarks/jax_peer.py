"""The calls of JAX libraries that `peers` measures, in a separate process.

`"jax"` is the least that JAX can do: a loop, and its implicit gradient by as many
products with the Jacobian. `"jaxopt"` mixes and stops for the batch, as one system; its
implicit gradient is its default, conjugate gradients on the normal equations, with as
many products. `"optimistix"` solves to a tolerance.
"""

import functools

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np
import optimistix
from jax import lax

_NUM_HEADS = 8
_GROUPS = 8
_EPSILON = 1e-5
_HISTORY = 4


def _transformer_layer(state, injection, p):
    batch, length, width = state.shape
    attended = state + injection
    packed = attended @ p["qkv_kernel"] + p["qkv_bias"]
    packed = packed.reshape(batch, length, 3, _NUM_HEADS, -1)
    query, key, value = (packed[:, :, i] for i in range(3))  # (B, L, H, K) each
    scores = jnp.einsum("blhk,bmhk->bhlm", query, key) / np.sqrt(width // _NUM_HEADS)
    mixed = jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), value)
    mixed = mixed.reshape(batch, length, width)
    mixed = mixed @ p["output_kernel"] + p["output_bias"]
    hidden = _normalize(attended + mixed, (-1,), p, "attention")
    inner = jax.nn.relu(hidden @ p["inner_kernel"] + p["inner_bias"])
    update = inner @ p["outer_kernel"] + p["outer_bias"]
    return _normalize(hidden + update, (-1,), p, "feed_forward")


def _conv_block(state, injection, p):
    hidden = _convolve(state, p["first_kernel"])
    hidden = jax.nn.relu(_group_norm(hidden, p, "first"))
    hidden = injection + _convolve(hidden, p["second_kernel"])
    hidden = jax.nn.relu(state + _group_norm(hidden, p, "second"))
    return _group_norm(hidden, p, "third")


def _dense(state, injection, p):
    return jnp.tanh(state @ p["kernel"] + injection)


_FUNCTIONS = {
    "transformer_layer": _transformer_layer,
    "conv_block": _conv_block,
    "dense": _dense,
}


def _convolve(inputs, kernel):
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        inputs, kernel, (1, 1), "SAME", dimension_numbers=layout
    )


def _normalize(inputs, axes, p, name):
    mean = inputs.mean(axes, keepdims=True)
    variance = inputs.var(axes, keepdims=True)
    normal = (inputs - mean) * lax.rsqrt(variance + _EPSILON)
    if name is None:
        return normal
    return normal * p[f"{name}_scale"] + p[f"{name}_shift"]


def _group_norm(inputs, p, name):
    groups = inputs.reshape(*inputs.shape[:3], _GROUPS, -1)  # (B, H, W, G, C/G)
    normal = _normalize(groups, (1, 2, 4), p, None).reshape(inputs.shape)
    return normal * p[f"{name}_scale"] + p[f"{name}_shift"]


def make(name, path, library, kind, solver=None, budget=None, tol=0.0):
    """Returns a call without arguments; see `torchdeq_peer.make`."""
    arrays = {
        key: jnp.asarray(value, "float32") for key, value in np.load(path).items()
    }
    injection, target = arrays.pop("injection"), arrays.pop("target")
    start = jnp.zeros_like(injection)

    def function(state, weights):
        return _FUNCTIONS[name](state, injection, weights)

    if kind == "evaluate":
        compiled = jax.jit(function)
    else:
        solve = _SOLVES[library](function, solver, budget, tol)
        compiled = jax.jit(solve)
    if kind == "step":

        def loss(weights):
            return jnp.mean((solve(start, weights) - target) ** 2)

        compiled = jax.jit(jax.value_and_grad(loss))
        return lambda: np.asarray(jax.block_until_ready(compiled(arrays))[0])
    return lambda: np.asarray(compiled(start, arrays))


def _jax(function, solver, budget, tol):
    """Returns a solve by a plain loop."""
    del solver

    @jax.custom_vjp
    def solve(state, weights):
        if not tol:
            return lax.fori_loop(0, budget, lambda _, z: function(z, weights), state)

        def step(carry):
            count, value, _ = carry
            following = function(value, weights)
            norm = jnp.linalg.norm(following)
            return count + 1, following, jnp.linalg.norm(following - value) / norm

        def goes_on(carry):
            return (carry[0] < budget) & (carry[2] > tol)

        return lax.while_loop(goes_on, step, (0, state, jnp.inf))[1]

    def forward(state, weights):
        value = solve(state, weights)
        return value, (value, weights)

    def backward(residuals, cotangent):
        value, weights = residuals
        _, product = jax.vjp(function, value, weights)
        adjoint = lax.fori_loop(
            0, budget, lambda _, v: product(v)[0] + cotangent, cotangent
        )
        return jnp.zeros_like(value), product(adjoint)[1]

    solve.defvjp(forward, backward)
    return solve


def _jaxopt(function, solver, budget, tol):
    """Returns a solve by jaxopt, whose tolerance is absolute."""
    linear = functools.partial(
        jaxopt.linear_solve.solve_normal_cg, maxiter=budget // 2, tol=0.0
    )
    options = {"maxiter": budget, "tol": tol, "implicit_diff_solve": linear}
    if solver == "fixed_point_iteration":
        made = jaxopt.FixedPointIteration(function, **options)
    elif solver == "anderson":
        made = jaxopt.AndersonAcceleration(function, history_size=_HISTORY, **options)
    else:  # With f(z) - z, it does not converge.
        made = jaxopt.Broyden(lambda z, weights: z - function(z, weights), **options)
    return lambda state, weights: made.run(state, weights).params


def _optimistix(function, solver, budget, tol):
    """Returns a solve by optimistix."""
    del solver
    made = optimistix.FixedPointIteration(rtol=tol, atol=tol)

    def solve(state, weights):
        return optimistix.fixed_point(
            function, made, state, args=weights, max_steps=budget, throw=False
        ).value

    return solve


_SOLVES = {"jax": _jax, "jaxopt": _jaxopt, "optimistix": _optimistix}
