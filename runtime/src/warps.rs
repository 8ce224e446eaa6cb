//! Proofs of the warp level, the longest ones. They depend on a kernel and on no shape, so they are kept for the process:
//! choosing a variant, building it, and building it again for another shape or by other ranks take one proof.

use crate::latest::Latest;
use counterflow_codegen::diag::Diagnostics;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::verify::{self, Checked};
use counterflow_codegen::warp::Pipeline;
use std::sync::{Mutex, PoisonError};

/// Kernels that are kept. One takes about 100 KiB.
const KEPT: usize = 256;

type Verdict = Result<Checked<Pipeline>, Diagnostics>;

/// The warp level of a kernel, proven now unless this process has done so lately. Threads that ask for the same kernel wait for
/// one proof; other kernels are proven meanwhile.
///
/// # Errors
/// As [`verify::warps`].
pub(crate) fn warps(kernel: &Checked<Kernel>) -> Verdict {
    static LATEST: Mutex<Latest<Verdict, KEPT>> = Mutex::new(Latest::new());
    // All of it, with the places that a report names: two schedules of one name are two. But `Debug` of a foreign function leaves
    // its twin out. So nothing may read a twin from a pipeline that is kept here: the emulator takes those of its own series.
    let key = blake3::hash(format!("{:?}", **kernel).as_bytes());
    let place = {
        let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        latest.place(key)
    };
    place.get_or_init(|| verify::warps(kernel)).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::product;
    use counterflow_codegen::lower::lower;
    use counterflow_codegen::variant::Variant;

    fn kernel(tile: (u32, u32)) -> Checked<Kernel> {
        let kernel = lower(&product(tile), &Variant::new(1)).and_then(verify::kernel);
        kernel.expect("a kernel")
    }

    #[test]
    fn equal_kernels_have_one_proof_and_others_their_own() {
        let of = |tile| warps(&kernel(tile)).expect("proven");
        let (first, again, other) = (of((128, 128)), of((128, 128)), of((64, 128)));
        assert!(std::ptr::eq(&*first, &*again));
        assert_eq!(other.kernel.text(), kernel((64, 128)).text());
        assert_ne!(first.kernel.text(), other.kernel.text());
    }
}
