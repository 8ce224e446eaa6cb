//! Functions of the language, as numbers.

use counterflow_codegen::value::Unary;

#[test]
fn erf_matches_known_values() {
    let erf = |x: f64| Unary::Erf.eval(x);
    // Abramowitz and Stegun, table 7.1, and the symmetry erf(-x) = -erf(x).
    for (x, expected) in [
        (0.0, 0.0),
        (0.5, 0.520499877813),
        (1.0, 0.842700792950),
        (2.0, 0.995322265019),
    ] {
        assert!((erf(x) - expected).abs() < 1e-11, "erf({x})");
        assert!((erf(-x) + expected).abs() < 1e-11, "erf(-{x})");
    }
    // Tails keep their digits: gelu(x) is x / 2 * erfc(-x / √2), and erfc(5) is known.
    let x = -5.0 * 2.0_f64.sqrt();
    let known = x / 2.0 * 1.537_459_794_428_035e-12;
    assert!((Unary::Gelu.eval(x) / known - 1.0).abs() < 1e-12);
    assert!((Unary::Gelu.eval(-9.0) / -1.015_729_565_358_458e-18 - 1.0).abs() < 1e-12);
    assert!(erf(f64::NAN).is_nan());
}
