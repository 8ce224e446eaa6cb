//! Elements of an op's tensors: their types, scales and memory layout.

use super::OpBuilder;
use crate::op::typed::Launcher;
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::rule::ScaleRule;
use counterflow_codegen::variant::{Layout, Scales};

impl<S: Launcher> OpBuilder<'_, S> {
    /// The element type, in place of the first parameter's wherever that occurs. FP8 replaces it only in what products
    /// multiply, and in what is copied from or to that.
    pub fn dtype(mut self, dtype: Dtype) -> Self {
        self.variant = self.variant.dtype(dtype);
        self
    }

    /// The FP8 type of products' second operands, where it is not that of the first: of e4m3 and e5m2 one each, such as
    /// gradients by weights.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, prelude::{bf16, e4m3, e5m2}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E5M2).rhs_dtype(Dtype::E4M3);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, mut y) = (rank.zeros::<e5m2>([64, 64])?, rank.zeros::<e4m3>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// x.write(&[e5m2::ONE; 64 * 64])?;
    /// w.write(&[e4m3::ONE; 64 * 64])?;
    /// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    /// assert_eq!(y.read()?, [bf16::from_f32(64.0); 64 * 64]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn rhs_dtype(mut self, dtype: Dtype) -> Self {
        self.variant = self.variant.rhs_dtype(dtype);
        self
    }

    /// Sets the scales of FP8 operands. Launches take each operand as a [`QuantTensor`](crate::QuantTensor), codes and scales together, and read
    /// the scales in the GPU's memory when they run: one f32 of any alignment; or, with [`Scales::PerRow`], one f32 for each of its
    /// rows, as a tensor of as many rows and one column. Scales of rows that are gathered travel with them: like their operand
    /// they are in the symmetric heap, where a rank fills its own shard. One scale for all of what is gathered is given to all
    /// ranks alike.
    ///
    /// Scales of blocks are planes as quantisers write them: of 1×128 `[⌈K/128⌉][rows padded to 4]`, of 128×128
    /// `[⌈rows/128⌉][⌈K/128⌉
    /// padded to 4]`. Where they are gathered, each rank's shard has a plane of its own, all behind each other in the heap, and a
    /// shard has a multiple of 4 rows, or of 128, but for the last. Lines of 1×128 are as long as a full shard has rows:
    /// [`Op::needs_at`](crate::op::Op::needs_at) has that number for each number of rows.
    ///
    /// ```
    /// use counterflow::op::{Granularity, QuantTensor};
    /// use counterflow::{Communicator, Dtype, Scales, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::PerTensor);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, mut y) = (rank.zeros::<e4m3>([64, 64])?, rank.zeros::<e4m3>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let (of_x, of_w) = (rank.zeros::<f32>([1])?, rank.zeros::<f32>([1])?);
    /// x.write(&[e4m3::ONE; 64 * 64])?;
    /// w.write(&[e4m3::ONE; 64 * 64])?;
    /// of_x.write(&[0.5])?;
    /// of_w.write(&[0.25])?;
    /// // Codes and scales, each a handle of memory that may be shared.
    /// let whole = |codes: &_, scale| QuantTensor::new(Clone::clone(codes), scale, Granularity::PerTensor);
    /// op.on(rank).x(&whole(&x, of_x)?).w(&whole(&w, of_w)?).y(&mut y).launch()?.wait()?;
    /// assert_eq!(y.read()?, [bf16::from_f32(64.0 * 0.5 * 0.25); 64 * 64]);
    ///
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::PerRow);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (of_x, of_w) = (rank.zeros::<f32>([64, 1])?, rank.zeros::<f32>([64, 1])?);
    /// let rows: Vec<f32> = (0..64).map(|row| 0.25 * row as f32).collect();
    /// of_x.write(&rows)?;
    /// of_w.write(&[0.5; 64])?;
    /// let (x, w) = (QuantTensor::new(x, of_x, Granularity::PerRow)?, QuantTensor::new(w, of_w, Granularity::PerRow)?);
    /// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    /// assert_eq!(y.read()?[3 * 64], bf16::from_f32(64.0 * 0.75 * 0.5));
    ///
    /// use counterflow::schedules::AgGemmOp;
    /// let all = Communicator::emulated(2)?;
    /// Communicator::each(&all, |rank| {
    ///     let op = rank.op_of::<AgGemmOp>().dtype(Dtype::E4M3).scales(Scales::PerRow);
    ///     let op = op.first_options().up_to(64, 64, 64).build()?;
    ///     let x = QuantTensor::allocate::<e4m3>(rank, "x", &op.needs("x")?)?;
    ///     let (w, mut y) = (QuantTensor::zeros::<e4m3>(rank, &op.needs("w")?)?, rank.zeros::<bf16>([64, 64])?);
    ///     w.codes().write(&[e4m3::ONE; 64 * 64])?;
    ///     w.scales().write(&[0.5; 64])?;
    ///     x.codes().write(&[e4m3::ONE; 64 * 64])?; // this rank's 32 rows count
    ///     x.scales().write(&vec![rank.rank() as f32 + 1.0; 64])?;
    ///     op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    ///     let y = y.read()?;
    ///     assert_eq!([y[0], y[63 * 64]], [32.0, 64.0].map(bf16::from_f32)); // rows of rank 0, and of rank 1
    ///
    ///     let op = rank.op_of::<AgGemmOp>().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    ///     let op = op.first_options().up_to(64, 64, 256).build()?;
    ///     rank.reserve(2 << 20)?; // a slot of the heap
    ///     let x = QuantTensor::allocate::<e4m3>(rank, "x", &op.needs("x")?)?;
    ///     let w = QuantTensor::zeros::<e4m3>(rank, &op.needs("w")?)?;
    ///     assert_eq!(x.scales().shape(), [2 * 2, 32]); // of each rank two lines, of 32 rows
    ///     w.codes().write(&[e4m3::ONE; 64 * 256])?;
    ///     w.scales().write(&[0.5, 0.25, 0.0, 0.0])?; // a number for each 128 of K, and padding
    ///     let mine = x.rows(op.shard("x", rank.rank(), 64)?)?;
    ///     mine.codes().write(&[e4m3::ONE; 32 * 256])?;
    ///     let sized = |scale: f32| scale * (rank.rank() + 1) as f32;
    ///     mine.scales().write(&[[sized(1.0); 32], [sized(4.0); 32]].concat())?; // or a quantiser does
    ///     let mut y = rank.zeros::<bf16>([64, 64])?;
    ///     op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    ///     let y = y.read()?;
    ///     assert_eq!([y[0], y[63 * 64]], [192.0, 384.0].map(bf16::from_f32)); // 128 · (1 · 0.5 + 4 · 0.25), and twice that
    ///     Ok(())
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn scales(mut self, scales: Scales) -> Self {
        self.variant = self.variant.scales(scales);
        self
    }

    /// The type of outputs (`Out`) that have the type of the first parameter, instead of that. Of FP8, each result is multiplied by
    /// one f32 in the GPU's memory, which launches read when they run, then rounded, and saturates. Launches take codes and number
    /// together: [`QuantTensor::output`](crate::QuantTensor::output).
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, QuantTensor, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().output(Dtype::E4M3);
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let mut y = QuantTensor::output(rank.zeros::<e4m3>([64, 64])?, rank.zeros::<f32>([1])?)?;
    /// x.write(&[bf16::ONE; 64 * 64])?;
    /// w.write(&[bf16::ONE; 64 * 64])?;
    /// for (by, wanted) in [(0.25, 16.0), (8.0, 448.0)] {
    ///     y.scales().write(&[by])?;
    ///     op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    ///     assert_eq!(y.codes().read()?, [e4m3::from_f32(wanted); 64 * 64]);
    /// }
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn output(mut self, dtype: Dtype) -> Self {
        self.variant = self.variant.output(dtype);
        self
    }

    /// Makes outputs ([`OpBuilder::output`]) FP8 with scales of 1×128, which each launch makes by that rule of what it computes: of 128
    /// columns of a row next to each other the amax becomes a scale, by which they are multiplied before they are rounded. Launches
    /// write codes and scales of a [`QuantTensor`](crate::QuantTensor): scales `[⌈N/128⌉][M padded to 4]`, padding zero, as a quantiser
    /// writes them and as the next product reads them ([`Scales::Blocks1d2d`], [`Scales::Blocks1d1d`]). Codes and scales have the bits that
    /// quantising the f32 results would give. Tiles have a multiple of 128 columns.
    ///
    /// ```
    /// use counterflow::rule::{Fp8, ScaleRule};
    /// use counterflow::{Communicator, Dtype, QuantTensor, Scales, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    /// let up = rank.op_of::<GemmOp>().output_scales(rule).first_options().up_to(64, 256, 64).build()?;
    /// let down = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).scales(Scales::Blocks1d2d);
    /// let down = down.first_options().up_to(64, 64, 256).build()?;
    /// let (x, w) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([256, 64])?);
    /// let mut y = QuantTensor::zeros::<e4m3>(rank, &up.needs("y")?)?;
    /// x.write(&[bf16::ONE; 64 * 64])?;
    /// w.write(&[[bf16::ONE; 128 * 64], [bf16::from_f32(0.25); 128 * 64]].concat())?;
    /// up.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    /// assert_eq!(y.scales().read()?, [[0.25; 64], [0.0625; 64]].concat()); // 64 and 16 as 256
    /// assert_eq!(y.codes().read()?, [e4m3::from_f32(256.0); 64 * 256]);
    ///
    /// let (v, mut z) = (QuantTensor::zeros::<e4m3>(rank, &down.needs("w")?)?, rank.zeros::<bf16>([64, 64])?);
    /// v.codes().write(&[e4m3::ONE; 64 * 256])?;
    /// v.scales().write(&[1.0, 2.0, 0.0, 0.0])?;
    /// down.on(rank).x(&y).w(&v).y(&mut z).launch()?.wait()?;
    /// assert_eq!(z.read()?, [bf16::from_f32(128.0 * (64.0 + 2.0 * 16.0)); 64 * 64]);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn output_scales(mut self, rule: ScaleRule) -> Self {
        self.variant = self.variant.output_scales(rule);
        self
    }

    /// Lets partial sums of tiles travel in FP8, with scales of 1×128 by that rule: half the bytes of bf16, and 4 for each 128 of
    /// them. It is for schedules that send tiles once and add them where they land, by `partial[others()][t].sum()`: `gemm_rs`,
    /// `gemm_ar`, `mlp`. Who computes a tile takes the amax of each 128 columns of a row and writes codes and scales; who adds it
    /// multiplies, and adds in f32, in the same order as without, so the same inputs give the same bits in every run. A rank's own
    /// part never leaves its registers and stays f32. TransformerEngine's reduce-scatter has one scale for a tensor.
    ///
    /// **What it costs in accuracy** (emulated, N(0, 1) operands, K of 1024 to 8192 a rank; `notes/bench/FIGURES.md` has
    /// the table): each
    /// partial sum is off by up to 2⁻⁴ of itself with e4m3. The error's rms is 1.9 % of the results' with 2 ranks, 2.3 %
    /// with 4 and
    /// 2.5 % with 8, with bf16 0.2 %. With one scale for all that a rank sends it is the same, unless rows differ in size.
    ///
    /// **Infinities**: by TransformerEngine's rule one becomes the largest code, so a sum that overflowed is finite. Use
    /// DeepGEMM's where
    /// overflows must be seen, by loss scaling for instance: it makes NaN of all 128. NaN stays by both.
    ///
    /// Tiles have a multiple of 128 columns and of 64 rows. FP8 operands need scales of blocks, which go into the sum; what adds
    /// on its way, as a ring does, or in memory, is refused, and so are values that are computed before they are sent.
    ///
    /// ```
    /// use counterflow::rule::{Fp8, ScaleRule};
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmRsOp};
    ///
    /// Communicator::each(&Communicator::emulated(2)?, |rank| {
    ///     rank.reserve(2 << 20)?;
    ///     let rule = ScaleRule::transformer_engine(Fp8::E4M3).powers_of_two();
    ///     let op = rank.op_of::<GemmRsOp>().quantised_reduction(rule).set("tiles", (128, 128));
    ///     let op = op.first_options().up_to(64, 32, 16).build()?;
    ///     let (x, w) = (rank.zeros::<bf16>([64, 16])?, rank.zeros::<bf16>([32, 16])?);
    ///     x.write(&[bf16::ONE; 64 * 16])?;
    ///     w.write(&[bf16::ONE; 32 * 16])?;
    ///     let mut y = rank.allocate::<bf16>("y", [32, 32])?;
    ///     op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    ///     assert_eq!(y.read()?, [bf16::from_f32(32.0); 32 * 32]); // 16 of each rank
    ///     Ok(())
    /// })?;
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn quantised_reduction(mut self, rule: ScaleRule) -> Self {
        self.variant = self.variant.quantised_reduction(rule);
        self
    }

    /// Makes a hidden layer FP8: scratch of that name which products multiply, such as `mlp`'s `hidden`. Launches are given one f32 in
    /// the GPU's memory, of any alignment, under the layer's name, and read it when they run. What is stored in the layer is multiplied
    /// by it, then rounded, and saturates; products of the layer are divided by it. What they multiply the layer by is FP8, too, with one
    /// scale or with scales of rows.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, QuantTensor, Scales, prelude::{bf16, e4m3}, schedules::MlpOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// rank.reserve(4 << 20)?;
    /// let op = rank.op_of::<MlpOp>().dtype(Dtype::E4M3).scales(Scales::PerTensor).hidden("hidden", Dtype::E4M3);
    /// let op = op.first_options().up_to(64, 128, 64).build()?;
    /// let x = QuantTensor::allocate::<e4m3>(rank, "x", &op.needs("x")?)?;
    /// let [up, down] = ["up", "down"].map(|name| QuantTensor::zeros::<e4m3>(rank, &op.needs(name)?));
    /// let (up, down) = (up?, down?);
    /// x.codes().write(&[e4m3::ONE; 64 * 64])?;
    /// up.codes().write(&[e4m3::ONE; 128 * 64])?;
    /// down.codes().write(&[e4m3::ONE; 64 * 128])?;
    /// [x.scales().write(&[1.0])?, up.scales().write(&[0.5])?, down.scales().write(&[1.0])?];
    /// let number = rank.zeros::<f32>([1])?;
    /// let mut y = rank.allocate::<bf16>("y", [64, 64])?;
    /// for (by, hidden) in [(8.0, 32.0), (16.0, 28.0)] {
    ///     number.write(&[by])?;
    ///     let launch = op.on(rank).x(&x).up(&up).down(&down).y(&mut y);
    ///     launch.tensor("hidden", &number).launch()?.wait()?;
    ///     assert_eq!(y.read()?[0], bf16::from_f32(128.0 * hidden)); // 32, or as much of it as 448 is of 16
    /// }
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn hidden(mut self, layer: &str, dtype: Dtype) -> Self {
        self.variant = self.variant.hidden(layer, dtype);
        self
    }

    /// Gives each output that has a scale ([`OpBuilder::output`]) its amax: one f32 in the GPU's memory,
    /// [`QuantTensor::with_amax`](crate::QuantTensor::with_amax). A launch makes it as large as the largest absolute value of what it computes for the output, before the scale.
    /// What it held before counts, unless its sign bit is set: then it is less than any absolute value, even if it is NaN. Where
    /// what is computed is NaN, so is the amax. Delayed scaling makes the next scale of it.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, QuantTensor, prelude::{bf16, e4m3}, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().output(Dtype::E4M3).amax();
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// let (x, w, amax) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?, rank.zeros::<f32>([1])?);
    /// let y = QuantTensor::output(rank.zeros::<e4m3>([64, 64])?, rank.zeros::<f32>([1])?)?;
    /// let mut y = y.with_amax(amax.clone())?;
    /// w.write(&[bf16::ONE; 64 * 64])?;
    /// y.scales().write(&[2.0])?;
    /// for (of, wanted) in [(-0.5, 32.0), (0.25, 32.0), (1.0, 64.0)] {
    ///     x.write(&[bf16::from_f32(of); 64 * 64])?;
    ///     op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    ///     assert_eq!(amax.read()?, [wanted]);
    /// }
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn amax(mut self) -> Self {
        self.variant = self.variant.amax(true);
        self
    }

    /// Promotes sums of FP8 products: every 128 of K, what the tensor cores summed is added in f32 to sums of the threads'
    /// own. The
    /// tensor cores alone keep 13 fraction bits. Scales of blocks always do. Tiles have at most 256×128 or 128×256 elements.
    ///
    /// ```
    /// use counterflow::{Communicator, Dtype, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().dtype(Dtype::E4M3).promote();
    /// let op = op.first_options().up_to(64, 64, 64).build()?;
    /// assert!(op.variant().promote);
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    pub fn promote(mut self) -> Self {
        self.variant.promote = true;
        self
    }

    /// Declares an input constant, such as weights: it is written only between launches, by what the stream waits for. A kernel
    /// without communication that multiplies it begins early (programmatic dependent launch) and fills its stages with it while the
    /// launch before still runs: if it has CTAs on four of five SMs or more, and always behind a gather of the same op, which waits
    /// for peers meanwhile. All else waits for that launch's end. The bits of results are the same. A kernel with communication
    /// loads nothing early, so in an op that is one fused kernel this changes nothing; `build` logs it.
    ///
    /// No gain was measured yet: a gather and a product of few rows on two H100s took the same time, within the spread.
    ///
    /// A launch begins early only where nothing before it that may still run writes the tensor, as far as this crate
    /// enqueued it: else it begins late, by itself, as it does right behind a step, a replay, a copy or a fill. In a captured stream of the program's no launch begins early; in
    /// [`Communicator::capture`](crate::Communicator::capture) those do that follow a stage of the same launch.
    ///
    /// ```
    /// use counterflow::{Communicator, prelude::bf16, schedules::GemmOp};
    ///
    /// let rank = &Communicator::emulated(1)?[0];
    /// let op = rank.op_of::<GemmOp>().constant("w").first_options().up_to(64, 64, 64).build()?;
    /// let (x, w) = (rank.zeros::<bf16>([64, 64])?, rank.zeros::<bf16>([64, 64])?);
    /// let mut y = rank.zeros::<bf16>([64, 64])?;
    /// op.on(rank).x(&x).w(&w).y(&mut y).launch()?.wait()?;
    ///
    /// let error = rank.op_of::<GemmOp>().constant("y").first_options().up_to(64, 64, 64).build().unwrap_err();
    /// println!("{error}"); // a launch writes it
    /// # Ok::<(), counterflow::Error>(())
    /// ```
    ///
    /// # Condition
    /// Where [`OpBuilder::pdl_after_foreign_kernels`] is called, too: no other library's kernel that writes the tensor in the rank's
    /// own stream lets the next kernel begin before its own end (`griddepcontrol.launch_dependents`).
    pub fn constant(mut self, tensor: &str) -> Self {
        self.variant = self.variant.constant(tensor);
        self
    }

    /// The layout of the dots' operands.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.variant.layout = layout;
        self
    }
}
