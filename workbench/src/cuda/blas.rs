//! cuBLASLt, the baseline GEMM: the fastest of the algorithms that its heuristic returns.

use super::elements;
use super::fp8::Pieces;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::variant::Layout;
use counterflow_runtime::driver::{Address, Event, Gpu, Local, Stream};
use counterflow_runtime::{Error, jit};
use cudarc::cublaslt::sys::{self, cublasStatus_t};
use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

/// Bytes of an algorithm's workspace: twice what cuBLASLt's guide recommends for Hopper.
const WORKSPACE: usize = 64 << 20;
/// How many algorithms we ask the heuristic for.
const ANSWERS: usize = 16;
/// The library's major version that our bindings are written for.
const FILE: &str = "libcublasLt.so.13";

/// cuBLASLt on one GPU, with memory to work in.
#[derive(Debug)]
pub struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Local<u8>,
    stream: Stream,
}

// SAFETY: a handle may be used from any thread, one call at a time: calls take `&self` of a value that one rank owns.
unsafe impl Send for Blas {}
// SAFETY: cuBLASLt's calls are thread-safe for one handle; the workspace is used in the order of one stream.
unsafe impl Sync for Blas {}

impl Blas {
    /// Loads the library for that GPU. Products run in the order of `stream`.
    ///
    /// # Errors
    /// [`Error::Toolkit`] if the library is missing; what it rejects.
    pub fn open(gpu: &Gpu, stream: &Stream) -> Result<Blas, Error> {
        jit::preload(FILE)?;
        // SAFETY: it loads the library, which runs no code of ours, and looks whether that worked.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Toolkit {
                what: format!("there is no cuBLASLt ({FILE}) to compare with"),
                help: "install CUDA 13's libcublas, or `pip install nvidia-cublas` and put its folder on LD_LIBRARY_PATH".into(),
            });
        }
        gpu.cuda()?.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the handle's place is ours, and the GPU is the thread's current one.
        check("start cuBLASLt", unsafe {
            sys::cublasLtCreate(&raw mut handle)
        })?;
        Ok(Blas {
            handle,
            workspace: Local::zeros(stream, WORKSPACE)?,
            stream: stream.clone(),
        })
    }

    /// Its version number.
    pub fn version(&self) -> usize {
        // SAFETY: the library is loaded.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// The fastest algorithm for a product: each one that the heuristic returns is tried on these operands.
    ///
    /// # Errors
    /// [`Error::NotYet`] for types that are not compared; what the library rejects.
    pub fn product(&self, problem: Problem, operands: &[Operands]) -> Result<Matmul<'_>, Error> {
        let mut product = Matmul::new(self, problem)?;
        if let Some(first) = operands.first() {
            product.say_scales(first)?;
        }
        // Algorithms that are far behind in the first lap are dropped. The others run more laps, each lap starting with
        // the next algorithm, and the least sum wins, so a changing clock decides nothing. (Taking the least time of
        // three laps in one order is not enough: at 8192³, where the best two are 3 % ahead of the next, it made our
        // speed over it 0.99 or 1.025, depending on the run.)
        const BEHIND: f64 = 1.25;
        const LAPS: usize = 8;
        let mut near: Vec<(Duration, Duration, _)> = Vec::new();
        for answer in product.answers()? {
            product.algorithm = answer;
            match product.time(operands, None) {
                Ok(once) => near.push((once, Duration::ZERO, answer)),
                // The heuristic also returns algorithms that then do not run.
                Err(Error::Driver { code, .. })
                    if ["not supported", "invalid value"].contains(&&code[..]) => {}
                Err(error) => return Err(error),
            }
        }
        let tried = near.len();
        let least = near.iter().map(|(once, ..)| *once).min();
        let most = least.unwrap_or_default().mul_f64(BEHIND);
        near.retain(|(once, ..)| *once <= most);
        for _ in 0..LAPS {
            for (once, sum, answer) in &mut near {
                product.algorithm = *answer;
                *sum += product.time(operands, Some(*once))?;
            }
            let next = near.len().min(1);
            near.rotate_left(next);
        }
        let best = near.into_iter().min_by_key(|(_, sum, _)| *sum);
        let Some((.., algorithm)) = best else {
            return Err(Error::Toolkit {
                what: format!("cuBLASLt has no algorithm for {problem:?}"),
                help: "give another shape".into(),
            });
        };
        product.algorithm = algorithm;
        product.tried = tried;
        Ok(product)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: products borrow the handle, so none is left.
        unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

/// A multiplication: sizes, types and layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Rows, columns, depth.
    pub size: [u32; 3],
    /// Type of the operands, the left one first. Sums are in f32.
    pub dtypes: [Dtype; 2],
    /// How FP8 operands are scaled, and their products added.
    pub scaled: Option<Scaled>,
    /// Type of the result and of what is added to it.
    pub result: Dtype,
    /// The epilogue in the same call.
    pub fused: Fused,
    /// As for our own kernels.
    pub layout: Layout,
}

/// cuBLASLt's epilogue, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fused {
    /// Adds a matrix of the result's type (beta is 1).
    pub added: bool,
    /// Adds a vector of the result's type along every row.
    pub bias: Option<Address>,
    /// GELU by tanh. It has no other.
    pub gelu: bool,
}

impl Fused {
    /// Its number in cuBLASLt's enumeration.
    fn epilogue(self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t::{
            CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_GELU,
            CUBLASLT_EPILOGUE_GELU_BIAS,
        };
        match (self.bias.is_some(), self.gelu) {
            (false, false) => CUBLASLT_EPILOGUE_DEFAULT,
            (true, false) => CUBLASLT_EPILOGUE_BIAS,
            (false, true) => CUBLASLT_EPILOGUE_GELU,
            (true, true) => CUBLASLT_EPILOGUE_GELU_BIAS,
        }
    }
}

/// The scales of FP8 operands, and how their products are added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Scaled {
    /// What has a scale in the left operand, and in the right one.
    pub pieces: [Pieces; 2],
    /// Whether the tensor cores' own sums, of 13 bits, go on over all of K.
    pub fast: bool,
}

impl Scaled {
    /// Every kind that the library has for Hopper, but for operands without scales.
    pub const ALL: [Scaled; 7] = {
        use Pieces::{OneBy128, Rows, Square, Whole};
        const fn of(x: Pieces, w: Pieces, fast: bool) -> Scaled {
            let pieces = [x, w];
            Scaled { pieces, fast }
        }
        [
            of(Whole, Whole, true),
            of(Whole, Whole, false),
            of(Rows, Rows, true),
            of(Rows, Rows, false),
            of(OneBy128, Square, false),
            of(Square, OneBy128, false),
            of(OneBy128, OneBy128, false),
        ]
    };

    /// Its name beside the library's.
    pub fn name(self) -> String {
        let [x, w] = self.pieces.map(Pieces::name);
        let blocks = |of| matches!(of, Pieces::OneBy128 | Pieces::Square);
        match (x == w, self.fast) {
            _ if self.pieces.into_iter().any(blocks) => format!("{x} by {w}"),
            (true, true) => format!("{x}, fast"),
            (true, false) => format!("{x}, promoted"),
            (false, true) => format!("{x} by {w}, fast"),
            (false, false) => format!("{x} by {w}, promoted"),
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

/// The matrices' addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operands {
    /// The left one.
    pub x: Address,
    /// The right one.
    pub w: Address,
    /// What is added to the product, if [`Fused::added`].
    pub c: Option<Address>,
    /// The result.
    pub y: Address,
    /// The scales of the left operand and of the right one, where they have some.
    pub scales: [Option<Address>; 2],
}

/// One multiplication by cuBLASLt.
#[derive(Debug)]
pub struct Matmul<'a> {
    blas: &'a Blas,
    work: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
    /// The factor of the added matrix (beta).
    beta: f32,
    algorithm: sys::cublasLtMatmulAlgo_t,
    tried: usize,
}

impl<'a> Matmul<'a> {
    fn new(blas: &'a Blas, problem: Problem) -> Result<Matmul<'a>, Error> {
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
        for (place, dtype, [rows, columns]) in [
            (&mut product.a, dtypes[1], w),
            (&mut product.b, dtypes[0], x),
            (&mut product.c, result, [n, m]),
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

    /// Says where the scales are.
    fn say_scales(&self, operands: &Operands) -> Result<(), Error> {
        use sys::cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        };
        let [x, w] = operands.scales;
        if let Some(w) = w {
            self.say(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w.get())?;
        }
        if let Some(x) = x {
            self.say(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &x.get())?;
        }
        Ok(())
    }

    /// The heuristic's algorithms, its favourite first.
    fn answers(&self) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, Error> {
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
                self.c,
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

    /// How many algorithms were tried.
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
                self.c,
                &raw const self.algorithm,
                at(self.blas.workspace.address()),
                WORKSPACE,
                self.blas.stream.cuda()?.cu_stream().cast(),
            )
        })
    }

    /// Times an algorithm: as many launches as last a millisecond, at most 16, or a few if one's time is unknown. One
    /// launch runs before.
    fn time(&self, operands: &[Operands], once: Option<Duration>) -> Result<Duration, Error> {
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
        for layout in [self.a, self.b, self.c] {
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

fn check(what: &str, status: cublasStatus_t) -> Result<(), Error> {
    if status == cublasStatus_t::CUBLAS_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Driver {
        what: what.into(),
        code: format!("{status:?}")
            .trim_start_matches("CUBLAS_STATUS_")
            .to_lowercase()
            .replace('_', " "),
        help: "cuBLASLt's manual explains it; rows of all matrices are multiples of 16 bytes"
            .into(),
    })
}
