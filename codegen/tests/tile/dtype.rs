//! Rounding to element types.

use counterflow_codegen::dtype::Dtype;

/// Writing rounds as `round` does, and reading gives that back.
#[test]
fn what_is_written_is_read_rounded() {
    for dtype in Dtype::ALL {
        let mut place = vec![0; dtype.bytes() as usize];
        for value in [0.0, -1.0, 0.1, 3.0e-6, 65504.0, f32::INFINITY, 1.0 / 3.0] {
            dtype.write(value, &mut place);
            assert_eq!(dtype.read(&place), dtype.round(value), "{value} as {dtype}");
        }
        dtype.write(f32::NAN, &mut place);
        assert!(dtype.read(&place).is_nan(), "{dtype}");
        let least = 2.0 * dtype.half_subnormal();
        assert_eq!(f64::from(dtype.round(least as f32)), least, "{dtype}");
        assert_eq!(dtype.round((least * 0.49) as f32), 0.0, "{dtype}");
    }
}
