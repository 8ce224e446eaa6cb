//! GPUs, compiler and libraries of a measurement, and the ranks' common steps.

use super::apart::Apart;
use super::interleaved::Exchange;
use super::table::Name;
use super::task::{Measured, Task};
use super::variants::Planned;
use super::worker::Worker;
use super::{meter, table};
use crate::args::Request;
use crate::cuda::Nccl;
use crate::suite::Case;
use crate::{render, run};
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::variant::Variant;
use counterflow_emitter::CudaSource;
use counterflow_runtime::jit::Compiler;
use counterflow_runtime::tuned::{Key, Tuned};
use counterflow_runtime::{Communicator, Error, communicator, gpus, launch};
use counterflow_timeline::model::Volume;

/// GPUs, compiler and libraries, for all products.
pub(super) struct Setup {
    pub ranks: Vec<Communicator>,
    pub workers: Vec<Worker>,
    compiler: Compiler,
    exchange: Exchange,
    /// Ranks on the first GPU.
    pub sharing: usize,
    machine: Machine,
    /// Earlier winners: the user's, then the package's.
    pub tables: [Tuned; 2],
}

impl Setup {
    pub(super) fn new(
        world: u32,
        machine: impl Fn(&str) -> Result<Machine, Error>,
        fp8: bool,
    ) -> Result<Setup, Error> {
        let ranks = gpus::ranks(world)?;
        let gpu = ranks[0].gpu();
        gpu.cuda()?.must_be_hopper()?;
        let sharing = ranks
            .iter()
            .filter(|rank| rank.gpu().ordinal() == gpu.ordinal())
            .count();
        let machine = machine(gpu.name())?;
        let compiler = Compiler::find()?;
        let workers = Communicator::each(&ranks, |rank| Worker::new(rank, &compiler, fp8))?;
        Ok(Setup {
            exchange: Exchange::new(ranks.len()),
            ranks,
            workers,
            compiler,
            sharing,
            machine,
            tables: [Tuned::of_user()?, Tuned::embedded()?],
        })
    }

    /// Adds NCCL as a peer. Without a GPU for every rank it does not run: then this says so.
    pub(super) fn add_nccl(&mut self) -> Result<Option<String>, Error> {
        if self.sharing > 1 {
            return Ok(Some(without_nccl(self.ranks.len())));
        }
        let ranks = self.ranks.iter();
        let ranks: Vec<_> = ranks
            .map(|rank| Ok((rank.gpu().cuda()?.clone(), rank.stream().cuda()?.clone())))
            .collect::<Result<_, Error>>()?;
        for (worker, nccl) in self.workers.iter_mut().zip(Nccl::all(&ranks)?) {
            worker.nccl = Some(nccl);
        }
        Ok(None)
    }

    /// The part of a GPU that a rank has for kernels of that schedule.
    pub(super) fn machine(&self, program: &Program) -> Machine {
        let sms = self.ranks[0].gpu().sms();
        Machine {
            sms: communicator::share(sms, self.sharing as u32, run::copies(program)),
            ..self.machine.clone()
        }
    }

    pub(super) fn gpu(&self) -> &str {
        self.ranks[0].gpu().name()
    }

    /// Records the winners.
    pub(super) fn keep(
        &self,
        request: &Request,
        world: u32,
        results: &[table::Result],
    ) -> Result<String, Error> {
        if let Some(why) = not_kept(self.sharing, &request.variant) {
            return Ok(format!("  no winners recorded: {why}"));
        }
        let given = request.bench.tuned.clone();
        let path = given.or_else(Tuned::place).ok_or_else(|| Error::Usage {
            what: "there is no file for the winners".into(),
            legal: "give --tuned FILE, or a folder in COUNTERFLOW_CACHE".into(),
        })?;
        let variant = Variant {
            world,
            ..request.variant.clone()
        };
        let key = match &request.family {
            Some(family) => family.key(self.gpu(), &variant),
            None => Key::new(self.gpu(), &request.program, &variant),
        };
        let winners = results.iter().filter_map(|result| result.kept(&key));
        let tuned = Tuned::keep(&path, winners)?;
        Ok(format!(
            "  **{}** known in {}",
            render::plural(tuned.len() as u64, "winner"),
            path.display()
        ))
    }

    /// Compiles all kernels, as many at a time as there are cores, into the cache if there is one.
    pub(super) fn compile(&self, sources: &[CudaSource]) -> Result<(), Error> {
        launch::compile_all(&self.compiler, sources)
    }

    pub(super) fn describe(&self) -> String {
        let gpu = self.gpu();
        let place = match (self.ranks.len(), self.sharing) {
            (1, _) => gpu.to_owned(),
            (count, 1) => format!("{count} x {gpu}"),
            (count, _) => {
                format!("{count} ranks that share one {gpu}: these are not times of {count} GPUs")
            }
        };
        let mut text = format!(
            "**measuring** on {place}, beside cuBLASLt {}, compiled by {}",
            self.workers[0].blas.version(),
            self.compiler.describe()
        );
        if let Some(nccl) = &self.workers[0].nccl {
            text.push_str(&format!(", NCCL {}", nccl.version()));
        }
        if let Err(why) = meter::library() {
            text.push_str(&format!("\n  no clocks and no power: {why}"));
        }
        text
    }

    pub(super) fn measure(
        &self,
        request: &Request,
        case: &Case,
        kernels: &Kernels<'_>,
        budget: Option<f64>,
    ) -> Result<table::Result, Error> {
        let first = &kernels.ours[0];
        let (kernel, roles) = (&first.built.kernel, first.built.roles);
        let task = Task {
            case,
            dtype: kernel.buffers[roles.x.index()].dtype,
            // A sweep compares ours with each other.
            every_scale: !request.bench.sweep,
            layout: kernel.variant.layout,
            ours: kernels.ours,
            plain: kernels.plain,
            apart: kernels.apart,
            alone: kernels.alone,
            compiler: Some(&self.compiler),
            samples: request.bench.samples,
            warm: request.bench.warm,
            budget,
            sustained: request.bench.seconds_in_a_row(),
            seed: request.seed,
            exchange: &self.exchange,
        };
        let measured = Communicator::each(&self.ranks, |rank| {
            self.workers[rank.rank() as usize].measure(rank, &task)
        })?;
        let names = names(kernels, measured.first());
        let link = (self.ranks.len() > 1).then(|| {
            let bytes = Volume::of(kernel, &first.plan).least_of_a_link();
            bytes as f64 / self.machine.link_copy_engine
        });
        Ok(table::Result::of(case, &names, &measured, link))
    }
}

/// Our kernels for a product.
pub(super) struct Kernels<'a> {
    /// Plans of the schedule.
    pub ours: &'a [Planned<'a>],
    /// Several kernels each, one behind the other.
    pub apart: &'a [Apart<'a>],
    /// Plans without options, one for each, if there are such options.
    pub plain: &'a [Planned<'a>],
    /// Difference of those from ours, in words.
    pub unlike: &'a str,
    /// The one for the product on each rank alone.
    pub alone: Option<&'a Planned<'a>>,
}

/// The names of all candidates, in the order of their samples. cuBLASLt's is that of what it did.
fn names(kernels: &Kernels<'_>, first: Option<&Measured>) -> Vec<Name> {
    let mut names = vec![Name::of(table::CUBLAS)];
    let alone = kernels.alone.into_iter();
    names.extend(alone.map(|alone| Name::of(&format!("{} alone", alone.name()))));
    let (begin, count) = (names.len(), kernels.ours.len());
    let ours = kernels.ours.iter().enumerate();
    names.extend(ours.map(|(at, planned)| Name {
        text: planned.name(),
        choices: planned.recorded.clone(),
        plain: (at < kernels.plain.len()).then_some(begin + count + at),
    }));
    let plain = kernels.plain.iter();
    let unlike = kernels.unlike;
    names.extend(plain.map(|plain| Name::of(&format!("{} {unlike}", plain.name()))));
    let [peers, beside] = [
        first.map(|first| &first.peers),
        first.map(|first| &first.beside),
    ];
    names.extend(kernels.apart.iter().map(|apart| Name {
        choices: apart.choices.clone(),
        ..Name::of(&apart.name)
    }));
    let more = peers.into_iter().chain(beside).flatten();
    names.extend(more.map(|name| Name::of(name)));
    names
}

/// Reason that NCCL has no column where ranks share a GPU.
fn without_nccl(ranks: usize) -> String {
    format!("  NCCL is left out: it needs a GPU for every rank, and these {ranks} share one")
}

/// Reason that winners of a variant on so many ranks of a GPU are not recorded, if there is one.
fn not_kept(sharing: usize, variant: &Variant) -> Option<&'static str> {
    if sharing > 1 {
        return Some("times of ranks that share a GPU do not apply elsewhere");
    }
    (!variant.constants.is_empty())
        .then_some("a table does not tell products with constants from others")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn winners_of_shared_gpus_and_of_products_with_constants_are_not_kept() {
        let plain = Variant::new(2);
        let why = |sharing, variant: &Variant| not_kept(sharing, variant).unwrap_or_default();
        assert_eq!(not_kept(1, &plain), None);
        assert!(why(2, &plain).contains("share a GPU"));
        assert!(why(1, &plain.constant("w")).contains("constants"));
    }

    use crate::bench::fp8::tests::planned;
    use crate::bench::variants;
    use crate::library;
    use crate::suite;
    use counterflow_codegen::dtype::Dtype;

    /// A column less for NCCL moves the names of all that follow: they stand in the order of [`Measured`].
    #[test]
    fn every_candidate_has_a_name_in_the_order_of_its_samples() {
        let case = suite::single([512, 256, 256]);
        let build =
            |program: &Program| variants::build(program, &Variant::new(2).dtype(Dtype::E4M3));
        let [ours, gemm] = [library::ag_gemm, library::gemm]
            .map(|schedule| build(&schedule(&library::real())).expect("legal"));
        let (ours, gemm) = ([planned(&ours, &case)], planned(&gemm, &case));
        let kernels = |plain, alone| Kernels {
            ours: &ours,
            apart: &[],
            plain,
            unlike: "with a given scale instead of --output-scales",
            alone,
        };
        let measured = Measured {
            peers: vec!["NCCL, then cuBLASLt rows, fast".into()],
            beside: vec!["cuBLASLt whole, fast".into()],
            ..Measured::default()
        };
        let all = names(&kernels(&ours, Some(&gemm)), Some(&measured));
        let begins = [
            "cuBLASLt",
            "gemm ",
            "ag_gemm ",
            "ag_gemm ",
            "NCCL, then",
            "cuBLASLt whole",
        ];
        assert_eq!(all.len(), begins.len());
        for (at, (name, begin)) in all.iter().zip(begins).enumerate() {
            assert!(name.text.starts_with(begin), "{}", name.text);
            assert_eq!(name.choices.is_some(), at == 2);
            assert_eq!(name.plain, (at == 2).then_some(3));
        }
        let plain = format!(
            "{} with a given scale instead of --output-scales",
            all[2].text
        );
        assert_eq!(all[3].text, plain);
        let less = names(&kernels(&[], None), Some(&Measured::default()));
        assert!(less.len() == 2 && less[1].plain.is_none());
    }

    #[test]
    fn what_nccl_lacks_is_said() {
        let told = without_nccl(4);
        assert!(
            told.contains("left out") && told.contains("these 4 share one"),
            "{told}"
        );
    }
}
