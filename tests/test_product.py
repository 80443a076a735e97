"""Products over a few rows: the same numbers, by another library where that is faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import product

INPUTS, OUTPUTS = 24, 40


def operands(*rows, outputs=OUTPUTS, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(*rows, INPUTS)), rng.normal(size=(INPUTS, outputs))
    return jnp.asarray(x, dtype), jnp.asarray(kernel, dtype)


def hlo(f, *args):
    return jax.jit(f).lower(*args).compile().as_text()


@pytest.mark.parametrize("rows", [(), (1,), (2,), (3,), (2, 4), (9,), (4, 8), (33,), (0,)])
@pytest.mark.parametrize("multiply", [product.matmul, product.wide_matmul])
def test_products_are_those_of_the_definition(multiply, rows):
    x, kernel = operands(*rows)
    found = jax.jit(multiply)(x, kernel)
    assert found.shape == (*rows, OUTPUTS)
    np.testing.assert_allclose(found, np.asarray(x) @ np.asarray(kernel), rtol=0, atol=1e-5)


@pytest.mark.parametrize("outputs", [product.BLOCK - 1, product.BLOCK, 2 * product.BLOCK + 1])
def test_blocks_of_columns_cover_an_uneven_kernel(outputs):
    x, kernel = operands(5, outputs=outputs)
    found = jax.jit(product.wide_matmul)(x, kernel)
    np.testing.assert_allclose(found, np.asarray(x) @ np.asarray(kernel), rtol=0, atol=1e-5)


@pytest.mark.parametrize("multiply", [product.matmul, product.wide_matmul])
def test_a_row_does_not_depend_on_the_others(multiply):
    x, kernel = operands(6)
    other = x.at[1:].set(jnp.nan)
    run = jax.jit(multiply)
    np.testing.assert_array_equal(run(x, kernel)[0], run(other, kernel)[0])


def test_few_rows_are_not_given_to_the_library_that_packs_the_whole_kernel():
    """Fails when XLA learns to take the transposition back, or to take it along."""
    x, kernel = operands(5, outputs=4096)
    assert "ynn" in hlo(jnp.matmul, x, kernel)
    assert "ynn" not in hlo(product.matmul, x, kernel)


def test_a_wide_kernel_is_never_copied_whole():
    x, kernel = operands(5, outputs=10 * product.BLOCK)
    program = jax.jit(product.wide_matmul).lower(x, kernel).compile()
    result = 4 * 5 * kernel.shape[1]
    assert program.memory_analysis().temp_size_in_bytes < kernel.nbytes / 2 + 2 * result


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float64])
def test_other_types_go_the_plain_way(dtype):
    with jax.enable_x64(dtype == jnp.float64):
        x, kernel = operands(5, dtype=dtype)
        wanted = jnp.matmul(x, kernel)
        for multiply in (product.matmul, product.wide_matmul):
            found = multiply(x, kernel)
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, wanted)
        if dtype == jnp.bfloat16:
            assert product.matmul(x, kernel, dtype=jnp.float32).dtype == jnp.float32


@pytest.mark.parametrize("multiply", [product.matmul, product.wide_matmul])
def test_gradients_and_batches_pass_through(multiply):
    x, kernel = operands(5)
    grads = jax.grad(lambda x, k: multiply(x, k).sum(), argnums=(0, 1))(x, kernel)
    wanted = jax.grad(lambda x, k: (x @ k).sum(), argnums=(0, 1))(x, kernel)
    for a, b in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)
    found = jax.vmap(multiply, (0, None))(jnp.stack([x, 2 * x]), kernel)
    np.testing.assert_allclose(found[1], 2 * (x @ kernel), rtol=0, atol=1e-5)
