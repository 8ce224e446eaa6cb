//! One multiplication: its description for the library, the library's algorithms for it, and its runs.

use super::super::elements;
use super::super::fp8::Pieces;
use super::{Blas, Operands, Problem, Scaled, WORKSPACE, check};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::variant::Layout;
use counterflow_runtime::Error;
use counterflow_runtime::driver::{Address, Event};
use cudarc::cublaslt::sys::{self, cublasStatus_t};
use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

/// Number of algorithms that we ask the heuristic for.
const ANSWERS: usize = 16;

/// One multiplication by cuBLASLt.
#[derive(Debug)]
pub struct Matmul<'a> {
    blas: &'a Blas,
    work: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
    /// The factor of the added matrix (beta).
    beta: f32,
    pub(super) algorithm: sys::cublasLtMatmulAlgo_t,
    pub(super) tried: usize,
}

impl<'a> Matmul<'a> {
    pub(super) fn new(blas: &'a Blas, problem: Problem) -> Result<Matmul<'a>, Error> {
        let Problem {
            size: [m, n, k],
            dtypes,
            scaled,
            result,
            fused,
            layout,
        } = problem;
        if dtypes.contains(&Dtype::F32) {
            return Err(Error::NotYet {
                what: "f32 operands beside cuBLASLt".into(),
                help: "use --dtype bf16 or f16".into(),
            });
        }
        let mut product = Matmul {
            blas,
            work: ptr::null_mut(),
            a: ptr::null_mut(),
            b: ptr::null_mut(),
            c: ptr::null_mut(),
            d: ptr::null_mut(),
            beta: if fused.added { 1.0 } else { 0.0 },
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            tried: 0,
        };
        let single = sys::cudaDataType::CUDA_R_32F;
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        // SAFETY: the place is ours.
        check("describe a product", unsafe {
            sys::cublasLtMatmulDescCreate(&raw mut product.work, compute, single)
        })?;
        // cuBLAS is column-major: it multiplies the transposes, w to the left of x.
        let (w, x, transposed) = match layout {
            Layout::Nt => ([k, n], [k, m], [true, false]),
            Layout::Nn => ([n, k], [k, m], [false, false]),
            Layout::Tn => ([n, k], [m, k], [false, true]),
        };
        use sys::cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB,
        };
        for (attribute, transposed) in [CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB]
            .into_iter()
            .zip(transposed)
        {
            // 0: as it is, 1: transposed.
            product.say(attribute, &u32::from(transposed))?;
        }
        product.say(
            sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_EPILOGUE,
            &(fused.epilogue() as u32),
        )?;
        if let Some(bias) = fused.bias {
            product.say(
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                &bias.get(),
            )?;
        }
        if let Some(Scaled { pieces, fast }) = scaled {
            use sys::cublasLtMatmulDescAttributes_t::{
                CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                CUBLASLT_MATMUL_DESC_FAST_ACCUM,
            };
            product.say(CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(fast))?;
            let [x, w] = pieces.map(|pieces| mode(pieces) as u32);
            product.say(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w)?;
            product.say(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x)?;
        }
        // What is added to FP8 is never FP8, also where nothing is.
        let added = match result.is_fp8() {
            true => Dtype::Bf16,
            false => result,
        };
        for (place, dtype, [rows, columns]) in [
            (&mut product.a, dtypes[1], w),
            (&mut product.b, dtypes[0], x),
            (&mut product.c, added, [n, m]),
            (&mut product.d, result, [n, m]),
        ] {
            // SAFETY: the place is ours.
            check("describe a matrix", unsafe {
                sys::cublasLtMatrixLayoutCreate(
                    place,
                    elements::blas(dtype),
                    rows.into(),
                    columns.into(),
                    rows.into(),
                )
            })?;
        }
        Ok(product)
    }

    /// Sets an attribute: a byte, a 32-bit word, or an address.
    fn say<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), Error> {
        // SAFETY: the value is there, and of the size that is said: cuBLASLt refuses one that the attribute has not.
        check("describe a product", unsafe {
            sys::cublasLtMatmulDescSetAttribute(
                self.work,
                attribute,
                ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        })
    }

    /// Says where the scales are, and the amax.
    pub(super) fn say_scales(&self, operands: &Operands) -> Result<(), Error> {
        use sys::cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
            CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
        };
        let [x, w] = operands.scales;
        let [scale, amax] = operands.of_result;
        for (attribute, address) in [
            (CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w),
            (CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x),
            (CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, scale),
            (CUBLASLT_MATMUL_DESC_AMAX_D_POINTER, amax),
        ] {
            if let Some(address) = address {
                self.say(attribute, &address.get())?;
            }
        }
        Ok(())
    }

    /// The heuristic's algorithms, its favourite first.
    pub(super) fn answers(&self) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, Error> {
        let mut preference = ptr::null_mut();
        // SAFETY: the place is ours.
        check("say what cuBLASLt may use", unsafe {
            sys::cublasLtMatmulPreferenceCreate(&raw mut preference)
        })?;
        use sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the attribute is a size, which is there.
        let said = unsafe {
            sys::cublasLtMatmulPreferenceSetAttribute(
                preference,
                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                ptr::from_ref(&WORKSPACE).cast(),
                size_of::<usize>(),
            )
        };
        // SAFETY: plain numbers, of which zero is a value.
        let mut answers: [sys::cublasLtMatmulHeuristicResult_t; ANSWERS] =
            unsafe { std::mem::zeroed() };
        let mut count = 0;
        // SAFETY: all descriptions are made above, and there is room for as many answers as are asked for.
        let asked = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.blas.handle,
                self.work,
                self.a,
                self.b,
                self.c,
                self.d,
                preference,
                ANSWERS as i32,
                answers.as_mut_ptr(),
                &raw mut count,
            )
        };
        // SAFETY: nobody else has it.
        unsafe { sys::cublasLtMatmulPreferenceDestroy(preference) };
        check("say what cuBLASLt may use", said)?;
        // It has none for this problem.
        if asked == cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
            return Ok(Vec::new());
        }
        check("ask cuBLASLt for algorithms", asked)?;
        let count = usize::try_from(count).unwrap_or(0).min(ANSWERS);
        Ok(answers[..count].iter().map(|answer| answer.algo).collect())
    }

    /// Number of algorithms that were tried.
    pub fn tried(&self) -> usize {
        self.tried
    }

    /// Multiplies, in the order of the stream.
    ///
    /// # Errors
    /// What the library rejects.
    pub fn run(&self, operands: &Operands) -> Result<(), Error> {
        self.say_scales(operands)?;
        let one = 1f32;
        let at = |address: Address| address.get() as *mut c_void;
        // SAFETY: the descriptions are this product's, the operands are at least as large as they say (the caller
        // made them for this problem), the workspace has the size it is said to have, and the stream is of this GPU.
        check("multiply with cuBLASLt", unsafe {
            sys::cublasLtMatmul(
                self.blas.handle,
                self.work,
                ptr::from_ref(&one).cast(),
                at(operands.w),
                self.a,
                at(operands.x),
                self.b,
                ptr::from_ref(&self.beta).cast(),
                at(operands.c.unwrap_or(operands.y)),
                self.c,
                at(operands.y),
                self.d,
                &raw const self.algorithm,
                at(self.blas.workspace.address()),
                WORKSPACE,
                self.blas.stream.cuda()?.cu_stream().cast(),
            )
        })
    }

    /// Times an algorithm: as many launches as last a millisecond, at most 16, or a few if one's time is unknown. One
    /// launch runs before.
    pub(super) fn time(
        &self,
        operands: &[Operands],
        once: Option<Duration>,
    ) -> Result<Duration, Error> {
        const LONG: Duration = Duration::from_millis(1);
        const FEW: u32 = 3;
        let launches = once.map_or(FEW, |once| {
            let enough = LONG.as_secs_f64() / once.as_secs_f64().max(1e-6);
            (enough.ceil() as u32).clamp(1, 16)
        });
        // An algorithm's first launch also loads its code.
        self.run(&operands[0])?;
        let start = Event::record(&self.blas.stream)?;
        let all = operands.iter().cycle().take(launches as usize);
        for operands in all {
            self.run(operands)?;
        }
        Ok(Event::record(&self.blas.stream)?.since(&start)? / launches)
    }
}

impl Drop for Matmul<'_> {
    fn drop(&mut self) {
        for layout in [self.a, self.b, self.c, self.d] {
            if !layout.is_null() {
                // SAFETY: made by this product, and nobody else has it.
                unsafe { sys::cublasLtMatrixLayoutDestroy(layout) };
            }
        }
        if !self.work.is_null() {
            // SAFETY: as above.
            unsafe { sys::cublasLtMatmulDescDestroy(self.work) };
        }
    }
}

/// The library's word for what has a scale: none for nothing, which is as a scale of 1.
fn mode(pieces: Pieces) -> sys::cublasLtMatmulMatrixScale_t {
    use sys::cublasLtMatmulMatrixScale_t::{
        CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
        CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
    };
    match pieces {
        Pieces::Nothing | Pieces::Whole => CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        Pieces::Rows => CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
        Pieces::OneBy128 => CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        Pieces::Square => CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
    }
}
