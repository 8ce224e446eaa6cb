//! Families: their candidates, the stages of these, and the origin of each stage's tensors.

use crate::error::Error;
use crate::low_latency::{Collective, Sizes};
use crate::tuned::{Key, choices};
use counterflow_codegen::dtype::Dtype;
use counterflow_codegen::kernel::{Buffer, Kernel};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::plan::Plan;
use counterflow_codegen::program::{Program, RoleKind, Setting, TensorId, Usage};
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::{Tensors, Variant};
use std::collections::{BTreeMap, BTreeSet};

/// Schedules that compute the same result, the candidates for an op. All take the same tensors, by the same names.
///
/// ```
/// use counterflow::family::{Candidate, Family, Stage};
/// use counterflow::{Variant, schedules::{ag_gemm, ag_gemm_pull, all_gather, gemm}};
///
/// let family = Family::new("all_gather_gemm", ag_gemm()) // says which tensors a launch takes
///     .or(ag_gemm_pull())
///     .or_stages([Stage::new(all_gather()), Stage::new(gemm())]); // not fused
/// assert_eq!(family.first().name, "ag_gemm");
/// let names: Vec<String> = family.candidates().iter().map(Candidate::name).collect();
/// assert_eq!(names, ["ag_gemm", "ag_gemm_pull", "all_gather+gemm"]);
/// let key = family.key("NVIDIA H200", &Variant::new(2)); // tables have its winners by its own name
/// assert_eq!((&key.op[..], family.name()), ("all_gather_gemm", "all_gather_gemm"));
/// ```
#[derive(Clone, Debug)]
pub struct Family {
    name: String,
    candidates: Vec<Candidate>,
    /// Candidates that predictions alone consider.
    predicted: Vec<Candidate>,
    /// True if `predicted` is among the candidates.
    predicts: bool,
}

/// One way to compute what a family does: a schedule, or several stages, one launch behind the other.
///
/// ```
/// use counterflow::{families, family::SCHEDULE};
/// use std::collections::BTreeMap;
///
/// let family = families::gemm_reduce_scatter();
/// let apart = family.candidates().last().expect("some");
/// assert_eq!((apart.name(), apart.stages().len()), ("gemm+reduce_scatter".to_owned(), 2));
/// let tiles = BTreeMap::from([("tiles".to_owned(), (128, 64).into())]);
/// let row = apart.named_choices(&[tiles, BTreeMap::new()]); // as a table has it
/// assert_eq!((&row[SCHEDULE][..], &row["gemm/tiles"][..]), ("gemm+reduce_scatter", "128x64"));
/// ```
#[derive(Clone, Debug)]
pub struct Candidate {
    stages: Vec<Stage>,
}

/// A schedule as a part of a candidate.
///
/// ```
/// use counterflow::family::Stage;
/// use counterflow::schedules::{gemm, reduce_scatter};
///
/// // The product goes to memory of the op's own, `g`, and from there to the ranks that own its rows.
/// let stages = [Stage::new(gemm()).tensor("y", "g"), Stage::new(reduce_scatter()).of_result()];
/// # use counterflow::{Shape, Variant};
/// let shape = Shape::new(16, 8192, 4096); // rows over all ranks; columns and depth of one
/// for stage in &stages {
///     println!("{} of {}: {}", stage.program().name, stage.shape(&shape), stage.variant(&Variant::new(2)));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Stage {
    program: Program,
    /// The family's names of the schedule's tensors, where they differ.
    names: BTreeMap<String, String>,
    of_result: bool,
    /// The exchange of few rows that takes the place of the schedule's kernel.
    collective: Option<Collective>,
}

impl Family {
    /// A family of one candidate. Its tensors are those of the family's launches.
    pub fn new(name: &str, schedule: Program) -> Family {
        let family = Family {
            name: name.into(),
            candidates: Vec::new(),
            predicted: Vec::new(),
            predicts: false,
        };
        family.or(schedule)
    }

    /// Adds a schedule that computes the same of the same tensors.
    #[must_use]
    pub fn or(self, schedule: Program) -> Family {
        self.or_stages([Stage::new(schedule)])
    }

    /// Adds schedules that compute the same one after the other. At most one of them may communicate.
    #[must_use]
    pub fn or_stages(mut self, stages: impl IntoIterator<Item = Stage>) -> Family {
        let stages = stages.into_iter().collect();
        self.candidates.push(Candidate { stages });
        self
    }

    /// Adds schedules that compute the same and are no candidates of an op, as they reach every rank's memory at once: nothing
    /// chooses multicast by itself. [`Family::for_predictions`] has them.
    ///
    /// ```
    /// use counterflow::families;
    ///
    /// let family = families::all_gather_gemm();
    /// let predicted = family.for_predictions();
    /// assert_eq!(predicted.candidates().last().unwrap().name(), "ag_gemm_multicast");
    /// assert_eq!(predicted.candidates().len(), family.candidates().len() + 1);
    /// ```
    #[must_use]
    pub fn or_predicted(mut self, stages: impl IntoIterator<Item = Stage>) -> Family {
        let stages = stages.into_iter().collect();
        self.predicted.push(Candidate { stages });
        self
    }

    /// The family with those candidates, too, for [`choose`](super::choose) alone. An op of it is refused where one of them
    /// would be built.
    #[must_use]
    pub fn for_predictions(&self) -> Family {
        let all = self.candidates.iter().chain(&self.predicted);
        Family {
            name: self.name.clone(),
            candidates: all.cloned().collect(),
            predicted: Vec::new(),
            predicts: true,
        }
    }

    /// True if it is for predictions alone.
    pub(crate) fn predicts(&self) -> bool {
        self.predicts
    }

    /// Name of the family, under which tables have its winners.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The candidates. The first one says which tensors there are.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The first candidate's schedule.
    pub fn first(&self) -> &Program {
        &self.candidates[0].stages[0].program
    }

    /// Key of its winners in a table, without the shape.
    pub fn key(&self, gpu: &str, variant: &Variant) -> Key {
        Key {
            op: self.name.clone(),
            ..Key::new(gpu, self.first(), variant)
        }
    }

    /// The schedules of all candidates.
    pub(crate) fn programs(&self) -> Vec<&Program> {
        let stages = self.candidates.iter().flat_map(Candidate::stages);
        stages.map(Stage::program).collect()
    }

    /// The family for launches of so many ranks: orders by closure are tabulated.
    pub(crate) fn tabulated(&self, world: u32) -> Family {
        let mut family = self.clone();
        let stages = family.candidates.iter_mut().chain(&mut family.predicted);
        for stage in stages.flat_map(|candidate| &mut candidate.stages) {
            stage.program = stage.program.tabulated(world).into_owned();
        }
        family
    }
}

/// What is measured of a candidate whose stages have so many variants each: the first of all, then the others of each stage
/// beside the first ones of the rest. A mixture says which of each stage.
///
/// ```
/// use counterflow::family::mixtures;
///
/// assert_eq!(mixtures(&[2, 3]), [[0, 0], [1, 0], [0, 1], [0, 2]]);
/// assert_eq!(mixtures(&[2, 0]), Vec::<Vec<usize>>::new()); // a stage without a variant
/// ```
pub fn mixtures(counts: &[usize]) -> Vec<Vec<usize>> {
    if counts.contains(&0) {
        return Vec::new();
    }
    let first = vec![0; counts.len()];
    let others = counts.iter().enumerate().flat_map(|(stage, count)| {
        let first = first.clone();
        (1..*count).map(move |other| {
            let mut mixture = first.clone();
            mixture[stage] = other;
            mixture
        })
    });
    std::iter::once(first.clone()).chain(others).collect()
}

impl Candidate {
    /// The names of its schedules, joined by `+`.
    pub fn name(&self) -> String {
        let names = self.stages.iter().map(|stage| &stage.program.name[..]);
        names.collect::<Vec<_>>().join("+")
    }

    /// One launch after another. A fused schedule is one stage.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The choices of its stages as a table has them: those of one of several stages begin with its name.
    pub fn named_choices(&self, each: &[BTreeMap<String, Setting>]) -> BTreeMap<String, String> {
        let stages = self.stages.iter().zip(each);
        // Those of a schedule whose kernel is not launched say nothing.
        let stages = stages.filter(|(stage, _)| stage.collective.is_none());
        let named = stages.flat_map(|(stage, choices)| {
            let prefix = self.prefix(stage);
            let named = choices.iter();
            named.map(move |(name, setting)| (format!("{prefix}{name}"), setting.to_string()))
        });
        let named = named.chain([(SCHEDULE.to_owned(), self.name())]);
        named.collect()
    }

    /// Prefix of the names of a stage's choices.
    pub(super) fn prefix(&self, stage: &Stage) -> String {
        match self.stages.len() {
            1 => String::new(),
            _ => format!("{}/", stage.program.name),
        }
    }
}

/// The name under which a family's winner has its candidate.
pub const SCHEDULE: &str = "schedule";

impl Stage {
    /// Makes a stage of a schedule whose tensors have the family's names, and which moves rows of the product's depth or
    /// multiplies.
    pub fn new(program: Program) -> Stage {
        Stage {
            program,
            names: BTreeMap::new(),
            of_result: false,
            collective: None,
        }
    }

    /// Makes a stage that exchanges few rows by one kernel which is built for latency: rows go straight into the peers' memory, where
    /// data is its own signal. `schedule` does the same exchange, for many rows: launches have its tensors, and its rows on each rank.
    /// It is the library's `all_gather`, `reduce_scatter` or `all_reduce`, or one that differs from it in names and choices alone.
    /// The stage has its name behind `low_latency_`, or `low_latency_two_shot_`, and no choices. Sums are added in f32 in the order of
    /// ranks, from zero, and rounded once. NaN stays NaN: a pair of elements all of whose bits are set comes as another one.
    ///
    /// It moves bf16 and f16, in rows without gaps, of up to 8 ranks. Peers write their rows into memory of the heap of its own, twice
    /// as large as they are, which is 32 MiB at most: of four ranks 256 rows of 8192 elements in an all-reduce, in which each rank
    /// sends all its rows to every other, twice as many in one of two shots, and four times as many in a reduce-scatter or a gather.
    /// Beyond that, and for any other schedule, a candidate with it is refused, and a family takes another.
    ///
    /// ```
    /// use counterflow::family::{Collective, Stage};
    /// use counterflow::{Machine, Shape, schedules::reduce_scatter};
    ///
    /// let few = Stage::low_latency(Collective::ReduceScatter, reduce_scatter()).of_result();
    /// assert_eq!((few.collective(), few.program().name.as_str()), (Some(Collective::ReduceScatter), "low_latency_reduce_scatter"));
    /// let seconds = few.seconds(4, &Shape::new(16, 8192, 2048), &Machine::h200()).expect("an exchange");
    /// assert!(seconds < 10e-6, "{seconds}");
    /// let error = few.admits(4, &Shape::new(2048, 8192, 2048)).unwrap_err();
    /// assert_eq!(error.kind(), "too_large");
    /// ```
    pub fn low_latency(collective: Collective, schedule: Program) -> Stage {
        let prefix = match collective {
            Collective::TwoShotAllReduce => "low_latency_two_shot_",
            Collective::AllGather | Collective::ReduceScatter | Collective::AllReduce => {
                "low_latency_"
            }
        };
        let mut program = Program {
            name: format!("{prefix}{}", schedule.name),
            ..schedule
        };
        // They are of the kernel that is not launched.
        for tunable in &mut program.tunables {
            tunable.options.truncate(1);
        }
        Stage {
            collective: Some(collective),
            ..Stage::new(program)
        }
    }

    /// Refuses what the stage is not for, in a launch of a family of so many ranks: more than few rows of an exchange of low latency.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn admits(&self, world: u32, shape: &Shape) -> Result<(), Error> {
        self.sizes(world, shape)
            .map_or(Ok(()), |sizes| sizes.are_few())
    }

    /// The model's time of an exchange of low latency in a launch of a family, in seconds. None of a schedule's kernel, which has
    /// a timeline.
    pub fn seconds(&self, world: u32, shape: &Shape, machine: &Machine) -> Option<f64> {
        self.sizes(world, shape).map(|sizes| sizes.seconds(machine))
    }

    fn sizes(&self, world: u32, shape: &Shape) -> Option<Sizes> {
        let shape = &self.shape(shape);
        self.collective
            .map(|collective| Sizes::of_shape(collective, world, shape))
    }

    /// The exchange of few rows that takes the place of the schedule's kernel, if one does.
    pub fn collective(&self) -> Option<Collective> {
        self.collective
    }

    /// Says that the family calls a tensor otherwise. A name that the family does not have is memory of the op's own, which
    /// one stage writes and a later one reads.
    #[must_use]
    pub fn tensor(mut self, own: &str, name: &str) -> Stage {
        self.names.insert(own.into(), name.into());
        self
    }

    /// Says that it moves rows of the product's columns.
    #[must_use]
    pub fn of_result(mut self) -> Stage {
        self.of_result = true;
        self
    }

    /// True if [`Stage::of_result`] was called.
    pub(crate) fn is_of_result(&self) -> bool {
        self.of_result
    }

    /// The schedule.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Sizes of this stage in a launch of the family.
    pub fn shape(&self, shape: &Shape) -> Shape {
        let k = if self.of_result { shape.n } else { shape.k };
        Shape { k, ..shape.clone() }
    }

    /// The part of a family's variant that applies to this stage. A stage that only moves data has no options of products.
    pub fn variant(&self, asked: &Variant) -> Variant {
        let offered = match self.collective {
            None => choices(&self.program),
            Some(_) => BTreeMap::new(),
        };
        let mut choices = asked.choices.clone();
        choices.retain(|name, _| offered.contains_key(&name[..]));
        let multiplies = |role: &RoleKind| matches!(role, RoleKind::Gemm { .. });
        if self.program.roles.iter().any(|role| multiplies(&role.kind)) {
            return Variant {
                choices,
                constants: self.constants(asked),
                ..asked.clone()
            };
        }
        // Products of FP8 are of another type.
        let dtype = (asked.asked(&Tensors::OfFirstType).element)
            .filter(|dtype| !self.of_result || !dtype.is_fp8());
        let plain = Variant::new(asked.world).arch(asked.arch);
        Variant {
            choices,
            ..dtype.into_iter().fold(plain, Variant::dtype)
        }
    }

    /// Names of the family's constants in this stage, which need not have all.
    fn constants(&self, asked: &Variant) -> BTreeSet<String> {
        let own = self.program.tensors.iter().map(|tensor| &tensor.name);
        let constant = own.filter(|own| asked.constants.contains(self.name_of(own)));
        constant.cloned().collect()
    }

    /// The family's name of one of its tensors.
    fn name_of<'a>(&'a self, own: &'a str) -> &'a str {
        self.names.get(own).map_or(own, |name| name)
    }
}

/// Origin of a stage's tensor.
///
/// [`sources`] has an example.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A launch is given it: the tensor of that index of the first candidate's kernel.
    Given(usize),
    /// Memory of the op's own.
    Own,
}

/// Origin of each stage's tensors; `None` for scratch. `front` is the first candidate's kernel.
///
/// ```
/// use counterflow::codegen::{lower::lower, verify};
/// use counterflow::family::{self, Source};
/// use counterflow::{Error, Kernel, Variant, families, schedules};
///
/// let kernel = |program| Ok::<_, Error>(verify::kernel(lower(&program, &Variant::new(2))?)?);
/// let [front, gemm, moves] = [schedules::gemm_rs(), schedules::gemm(), schedules::reduce_scatter()].map(kernel);
/// let (front, gemm, moves) = (front?, gemm?, moves?);
/// let family = families::gemm_reduce_scatter();
/// let stages: [&Kernel; 2] = [&gemm, &moves];
/// let apart = family.candidates().last().expect("some");
/// let each = family::sources(apart, &front, &stages)?;
/// assert_eq!(each[0], [Some(Source::Given(0)), Some(Source::Given(1)), Some(Source::Own)]);
/// assert_eq!(each[1], [Some(Source::Own), Some(Source::Given(2)), None]); // no scratch
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`Error::Usage`] if the stages do not make all that the first candidate makes of the same tensors, if one reads what is
/// gathered before it is, and if they hand over more than one tensor.
pub fn sources(
    candidate: &Candidate,
    front: &Kernel,
    kernels: &[&Kernel],
) -> Result<Vec<Vec<Option<Source>>>, Error> {
    let refuse = |what: String| Err(refused(&candidate.name(), front, &what));
    let given = |name: &str| {
        let mut buffers = front.buffers.iter();
        buffers.position(|buffer| !buffer.is_scratch() && buffer.name == name)
    };
    let mut same = vec![false; front.buffers.len()];
    let mut made: BTreeMap<&str, Dtype> = BTreeMap::new();
    // What a stage reads before an earlier one gathered it.
    let mut early = None;
    let mut all = Vec::new();
    for (stage, kernel) in candidate.stages.iter().zip(kernels) {
        let mut wires = Vec::new();
        let (before, made_before) = (same.clone(), made.clone());
        for buffer in &kernel.buffers {
            let name = stage.name_of(&buffer.name);
            wires.push(match given(name) {
                _ if buffer.is_scratch() => None,
                Some(at) => {
                    let theirs = &front.buffers[at];
                    let alike = theirs.usage == buffer.usage;
                    let reads = buffer.usage == Usage::LOCAL && theirs.usage.is_gathered();
                    if !(alike || reads) || !alike_in_memory(theirs, buffer) {
                        return refuse(format!("another tensor `{name}`"));
                    }
                    if reads && !before[at] {
                        early.get_or_insert(name);
                    }
                    same[at] |= alike;
                    Some(Source::Given(at))
                }
                None if buffer.usage == Usage::OUT => {
                    made.insert(name, buffer.dtype);
                    Some(Source::Own)
                }
                None if made_before.get(name) == Some(&buffer.dtype) => Some(Source::Own),
                None => return refuse(format!("a tensor `{name}` that nothing makes")),
            });
        }
        all.push(wires);
    }
    let mut tensors = front.buffers.iter().zip(&same);
    if let Some((buffer, _)) = tensors.find(|(buffer, same)| !buffer.is_scratch() && !**same) {
        return refuse(format!("no tensor `{}` of that kind", buffer.name));
    }
    if let Some(name) = early {
        return refuse(format!("`{name}` is read before it is gathered"));
    }
    if let (Some((one, _)), Some((other, _))) = (made.first_key_value(), made.last_key_value())
        && one != other
    {
        return refuse(format!("stages hand over both `{one}` and `{other}`"));
    }
    let communicates = |kernel: &&&Kernel| !kernel.counters.is_empty();
    if kernels.iter().filter(communicates).count() > 1 {
        return refuse("several stages communicate".into());
    }
    Ok(all)
}

fn refused(candidate: &str, front: &Kernel, what: &str) -> Error {
    Error::Usage {
        what: format!("{candidate} instead of {}: {what}", front.name),
        legal:
            "candidates of a family take the same tensors, and options that all their stages have"
                .into(),
    }
}

/// A stage in a launch.
pub(crate) struct Wired<'a> {
    pub kernel: &'a Kernel,
    pub plan: &'a Plan,
    /// As [`sources`] gives them.
    pub sources: &'a [Option<Source>],
}

impl Wired<'_> {
    /// Lines of a tensor on each rank, and bytes of one.
    fn size(&self, at: usize) -> [u64; 2] {
        let id = TensorId(at as u16);
        [
            self.plan.held_lines(self.kernel, id),
            self.plan.pitch(self.kernel, id),
        ]
    }
}

/// Refuses stages that read or write other rows or columns of a launch's tensors than the first candidate, whose kernel and
/// plan are `front`; or of what a stage before made.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn fits<'a>(
    candidate: &str,
    front: (&Kernel, &Plan),
    stages: impl IntoIterator<Item = Wired<'a>>,
) -> Result<(), Error> {
    let (kernel, plan) = front;
    let front = Wired {
        kernel,
        plan,
        sources: &[],
    };
    let mut made = None;
    for stage in stages {
        for (at, source) in stage.sources.iter().enumerate() {
            let (buffer, own) = (&stage.kernel.buffers[at], stage.size(at));
            let (wanted, padded) = match source {
                None => continue,
                Some(Source::Given(of)) => {
                    // Memory that peers write has room for whole shards of all ranks.
                    let padded = kernel.buffers[*of].usage.is_gathered();
                    (front.size(*of), padded && !buffer.usage.is_gathered())
                }
                Some(Source::Own) => (*made.get_or_insert(own), false),
            };
            let fewer = padded && own[0] <= wanted[0];
            if own[1] != wanted[1] || !(own[0] == wanted[0] || fewer) {
                let lines = |[lines, bytes]: [u64; 2]| format!("{lines} lines of {bytes} bytes");
                let what = format!(
                    "`{}` of {} has {}, not {}, in a launch of {}",
                    buffer.name,
                    stage.kernel.name,
                    lines(own),
                    lines(wanted),
                    plan.shape
                );
                return Err(refused(candidate, kernel, &what));
            }
        }
    }
    Ok(())
}

/// True if two tensors lie alike in memory.
fn alike_in_memory(a: &Buffer, b: &Buffer) -> bool {
    (a.dtype, a.mn_major) == (b.dtype, b.mn_major)
}
