//! From a schedule to what is loaded: choices, proofs and warps, made once for all ranks of a process.

use crate::error::Error;
use crate::latest::Latest;
use crate::low_latency::{Collective, Sizes};
use crate::machines;
use crate::metrics::Why;
use crate::tuned::{self, Choice, Tuned, Winner};
use crate::warps::warps;
use counterflow_codegen::bits::BitsClass;
use counterflow_codegen::kernel::Kernel;
use counterflow_codegen::machine::Machine;
use counterflow_codegen::program::Program;
use counterflow_codegen::shape::Shape;
use counterflow_codegen::variant::Variant;
use counterflow_codegen::verify::{self, Checked, Series};
use counterflow_codegen::warp::Pipeline;
use counterflow_codegen::{lower::lower, plan::Plan};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Proofs that the ranks of a process made. The first rank makes a proof, the others take it: all have the same
/// choices. Ops keep their proofs, and a proof goes with the last op.
#[derive(Debug, Default)]
pub(crate) struct Proven {
    known: Mutex<Known>,
    measured: Measured,
}

/// Winners of measurements of this process, by all that was asked. An op that is built again measures nothing.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    winners: Mutex<HashMap<String, Winner>>,
    /// Reason that a trial stalled, if one did.
    stalled: Mutex<Option<String>>,
}

impl Measured {
    /// A trial stalled: what kept it may keep others, and each takes its time.
    pub fn stalls(&self, why: &str) {
        let mut stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        stalled.get_or_insert_with(|| why.to_owned());
    }

    /// Reason to try nothing unasked, if a trial stalled.
    pub fn stalled(&self) -> Option<String> {
        let stalled = self.stalled.lock().unwrap_or_else(PoisonError::into_inner);
        let why = stalled.as_ref()?;
        Some(format!(
            "none since an earlier one stalled; `.tuning(Tuning::Quick)` tries again: {why}"
        ))
    }

    pub fn winner(&self, asked: &str) -> Option<Winner> {
        let known = self.winners.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(asked).cloned()
    }

    pub fn put(&self, asked: String, winner: Winner) {
        let mut known = self.winners.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(asked, winner);
    }
}

/// Place of a proof. Who proves it holds the lock meanwhile, so that others who ask for it wait there.
type Place = Arc<Mutex<Weak<Proof>>>;

#[derive(Debug, Default)]
struct Known {
    /// By all that is asked, hashed: the text of a schedule is as large as its proof.
    all: HashMap<blake3::Hash, Place>,
    /// The last ones, for whoever asks for an op's memory before it builds it, and for ranks that come later.
    latest: VecDeque<Arc<Proof>>,
}

/// So many proofs stay without an op: as many as a layer has ops, with buckets, and with the candidates of families.
const LATEST: usize = 48;

/// Choices that are kept. One takes about 1 KiB.
const CHOICES: usize = 256;

/// A schedule with its choices made, and what is proven about it.
#[derive(Debug)]
pub(crate) struct Proof {
    pub variant: Variant,
    /// The exchange of few rows that takes the place of the schedule's kernel.
    pub collective: Option<Collective>,
    /// Reason that the op has these choices.
    pub why: Why,
    /// The largest launch, as it was asked for.
    pub shape: Shape,
    pub series: Series,
    pub largest: Checked<Plan>,
    pub pipeline: Checked<Pipeline>,
}

/// Request for a proof.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    pub program: &'a Program,
    /// The exchange of few rows that takes the place of its kernel.
    pub collective: Option<Collective>,
    /// Choices that are made already, types, layout and world.
    pub variant: Variant,
    /// The largest launch.
    pub shape: Shape,
    /// The GPU's name.
    pub gpu: &'a str,
    /// The part of the GPU that a rank has.
    pub sms: u32,
    /// True if open choices are settled as written first.
    pub first_options: bool,
    /// Bits that results may have.
    pub bits: Bits,
    /// A winner that counts before those of tables.
    pub known: Option<Winner>,
}

/// Bits that the rows of results may have.
#[derive(Clone, Debug)]
pub(crate) enum Bits {
    /// Any.
    Any,
    /// The same bits for every number of rows.
    Invariant,
    /// Bits of a class.
    Of(BitsClass),
}

impl Bits {
    /// Refuses a kernel whose rows have other bits.
    pub(crate) fn admits(&self, kernel: &Checked<Kernel>) -> Result<(), Error> {
        match self {
            Bits::Any => Ok(()),
            Bits::Invariant => Ok(BitsClass::of(kernel).map(drop)?),
            Bits::Of(class) => match BitsClass::of(kernel)? {
                own if own == *class => Ok(()),
                own => Err(Error::Usage {
                    what: format!("{} with {own}, beside launches with {class}", kernel.name),
                    legal: "variants of one class of bits".into(),
                }),
            },
        }
    }
}

impl Proven {
    /// Measurement of the choices.
    pub(crate) fn measured(&self) -> &Measured {
        &self.measured
    }

    /// The proof of that, made now if no rank made it before.
    ///
    /// # Errors
    /// Why every choice is rejected.
    pub(crate) fn of(&self, asked: &Asked<'_>) -> Result<Arc<Proof>, Error> {
        // All of it: two schedules of one name are two.
        let key = blake3::hash(format!("{asked:?}").as_bytes());
        self.of_key(key, || Proof::of(asked))
    }

    /// The proof of a key. Who asks for it while another proves it waits for that one, and nobody waits for the proof of something else.
    fn of_key(
        &self,
        key: blake3::Hash,
        prove: impl FnOnce() -> Result<Proof, Error>,
    ) -> Result<Arc<Proof>, Error> {
        let place = self.known().all.entry(key).or_default().clone();
        let proof = {
            let mut kept = place.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(proof) = kept.upgrade() {
                return Ok(proof);
            }
            let proof = prove().map(Arc::new);
            if let Ok(proof) = &proof {
                *kept = Arc::downgrade(proof);
            }
            proof
        };
        drop(place);
        let mut known = self.known();
        let Known { all, latest } = &mut *known;
        if let Ok(proof) = &proof {
            if latest.len() == LATEST {
                latest.pop_front();
            }
            latest.push_back(proof.clone());
        }
        all.retain(|_, place| is_asked_for(place));
        proof
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if a place has a proof, or somebody has it who will look or is at work.
fn is_asked_for(place: &mut Place) -> bool {
    Arc::get_mut(place).is_none_or(|kept| {
        let kept = kept.get_mut().unwrap_or_else(PoisonError::into_inner);
        kept.strong_count() > 0
    })
}

impl Asked<'_> {
    /// The choice by tables and the model. It depends on no rank and takes most of what a proof takes, so the latest are kept for
    /// the process: other communicators ask for the same.
    fn choice(&self, machine: &Machine) -> Result<Choice, Error> {
        static LATEST: Mutex<Latest<Choice, CHOICES>> = Mutex::new(Latest::new());
        let mut first = Tuned::default();
        let known = self.known.iter();
        known.for_each(|known| first.put(known.clone()));
        let user = Tuned::of_user()?;
        let key = blake3::hash(format!("{self:?} {user:?} {machine:?}").as_bytes());
        let place = {
            let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
            latest.place(key)
        };
        if let Some(choice) = place.get() {
            return Ok(choice.clone());
        }
        let tables = [first, user, Tuned::embedded()?];
        let admits = |kernel: &Checked<Kernel>| self.bits.admits(kernel);
        let (base, at) = (&self.variant, (&self.shape, machine));
        let choice = tuned::select_of(&tables, self.gpu, self.program, base, at, &admits)?;
        Ok(place.get_or_init(|| choice).clone())
    }
}

impl Proof {
    /// The model's time of the largest launch, in seconds.
    pub(crate) fn predicted(&self, machine: &Machine) -> f64 {
        if let Some(collective) = self.collective {
            let sizes = Sizes::of_shape(collective, self.variant.world, &self.shape);
            return sizes.seconds(machine);
        }
        let kernel = self.series.kernel();
        // A plan keeps the steps that the model walks through, so it gets one of its own: a large op has millions.
        let plan = self.series.plan(self.series.most());
        plan.map_or(f64::INFINITY, |plan| {
            tuned::predicted(kernel, &plan, machine)
        })
    }

    fn of(asked: &Asked<'_>) -> Result<Proof, Error> {
        let Asked {
            program,
            collective,
            variant,
            shape,
            gpu,
            sms,
            first_options,
            bits,
            ..
        } = asked;
        // The proof of many rows takes long.
        let few = collective.map(|collective| Sizes::of_shape(collective, variant.world, shape));
        few.map_or(Ok(()), |sizes| sizes.are_few())?;
        let machine = Machine {
            sms: *sms,
            ..machines::machine(gpu)?
        };
        let (variant, why) = if *first_options {
            (variant.clone(), Why::FirstOptions)
        } else {
            let choice = asked.choice(&machine)?;
            let why = match choice.measured {
                _ if tuned::combinations(program, variant, &BTreeMap::new()).len() < 2 => {
                    Why::OnlyOne
                }
                true => Why::Measured,
                false => Why::Model,
            };
            (choice.variant, why)
        };
        let kernel = verify::kernel(lower(program, &variant)?)?;
        bits.admits(&kernel)?;
        let series = verify::series(&kernel, shape, &machine)?;
        let largest = series.plan(series.most())?;
        if let Some(collective) = collective {
            let (sizes, _) = Sizes::of_plan(*collective, series.kernel(), &largest)?;
            sizes.are_few()?;
            // So the schedule's bits, which were asked for, are the exchange's.
            collective.admits(&kernel)?;
        }
        Ok(Proof {
            variant,
            collective: *collective,
            why,
            shape: shape.clone(),
            largest,
            pipeline: warps(&kernel)?,
            series,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedules::product;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn after_a_stall_the_reason_says_how_to_try_again() {
        let measured = Measured::default();
        assert_eq!(measured.stalled(), None);
        measured.stalls("rank 1 waits");
        measured.stalls("rank 0 waits");
        let why = measured.stalled().expect("a reason");
        assert!(
            why.contains("`.tuning(Tuning::Quick)` tries again: rank 1 waits"),
            "{why}"
        );
    }

    #[test]
    fn ranks_share_a_proof_and_schedules_of_one_name_do_not() {
        let proven = Proven::default();
        let (first, second) = (product((128, 128)), product((64, 64)));
        let of = |program, m| {
            let asked = Asked {
                program,
                collective: None,
                variant: Variant::new(1),
                shape: Shape::new(m, 256, 128),
                gpu: "a GPU",
                sms: 132,
                first_options: false,
                bits: Bits::Any,
                known: None,
            };
            proven.of(&asked).expect("a proof")
        };
        assert!(Arc::ptr_eq(&of(&first, 512), &of(&first, 512)));
        assert!(!Arc::ptr_eq(&of(&first, 512), &of(&first, 256)));
        assert!(!Arc::ptr_eq(&of(&first, 512), &of(&second, 512)));
    }

    fn small(program: &Program) -> Result<Proof, Error> {
        Proof::of(&Asked {
            program,
            collective: None,
            variant: Variant::new(1),
            shape: Shape::new(64, 64, 64),
            gpu: "a GPU",
            sms: 132,
            first_options: true,
            bits: Bits::Any,
            known: None,
        })
    }

    #[test]
    fn nobody_waits_for_the_proof_of_something_else() {
        let (proven, program) = (&Proven::default(), &product((64, 64)));
        let [one, other] = [b"one", b"two"].map(|key| blake3::hash(key));
        let ((begins, begun), (ends, ended)) = (mpsc::channel(), mpsc::channel());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let slow = || {
                    begins.send(()).expect("awaited");
                    let meanwhile = ended.recv_timeout(Duration::from_secs(20));
                    meanwhile.expect("the other proof, meanwhile");
                    small(program)
                };
                proven.of_key(one, slow).expect("a proof")
            });
            begun.recv().expect("begun");
            proven
                .of_key(other, || small(program))
                .expect("another proof");
            // Who gave up no longer listens, and has said so.
            let _ = ends.send(());
        });
    }

    #[test]
    fn a_proof_is_made_once_however_many_ask_at_once() {
        let (proven, program) = (&Proven::default(), &product((64, 64)));
        let (key, made) = (blake3::hash(b"one"), &AtomicUsize::new(0));
        let ask = || {
            let prove = || {
                made.fetch_add(1, Ordering::Relaxed);
                small(program)
            };
            proven.of_key(key, prove).expect("a proof")
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            let ended = threads.into_iter();
            ended
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert!(all.iter().all(|proof| Arc::ptr_eq(proof, &all[0])));
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn who_asks_again_after_a_refusal_is_told_again_and_no_refusal_stays() {
        let (proven, program) = (Proven::default(), product((64, 64)));
        let key = blake3::hash(b"one");
        for why in ["first", "second"] {
            let refused = || {
                Err(Error::Aborted {
                    what: why.into(),
                    help: String::new(),
                })
            };
            let told = proven.of_key(key, refused).expect_err("refused");
            assert_eq!(told.to_string(), why);
            assert_eq!(proven.known.lock().expect("whole").all.len(), 0);
        }
        let proof = proven.of_key(key, || small(&program)).expect("a proof");
        let again = proven.of_key(key, || unreachable!("it is proven"));
        assert!(Arc::ptr_eq(&proof, &again.expect("the same")));
    }

    #[test]
    fn a_choice_is_kept_for_what_is_asked_again_on_such_a_machine() {
        let program = product((128, 128));
        let asked = Asked {
            program: &program,
            collective: None,
            variant: Variant::new(1),
            shape: Shape::new(512, 256, 128),
            gpu: "a GPU",
            sms: 132,
            first_options: false,
            bits: Bits::Any,
            known: None,
        };
        let machine = Machine::h200();
        let choice = asked.choice(&machine).expect("a choice");
        assert_eq!(asked.choice(&machine).expect("a choice"), choice);
        // Whatever else is asked is chosen anew: what is refused is.
        let refused = Asked {
            variant: Variant::new(1).set("tiles", (8, 8)),
            ..asked.clone()
        };
        (0..2).for_each(|_| _ = refused.choice(&machine).expect_err("no such tile"));
        assert_eq!(asked.choice(&machine).expect("a choice"), choice);
    }

    #[test]
    fn a_proof_goes_with_its_last_op_but_for_the_latest_ones() {
        let proven = Proven::default();
        let program = product((64, 64));
        let of = |m| {
            let asked = Asked {
                program: &program,
                collective: None,
                variant: Variant::new(1),
                shape: Shape::new(m, 64, 64),
                gpu: "a GPU",
                sms: 132,
                first_options: true,
                bits: Bits::Any,
                known: None,
            };
            proven.of(&asked).expect("a proof")
        };
        let kept = of(1);
        let dropped = Arc::downgrade(&of(2));
        assert!(
            dropped.upgrade().is_some(),
            "whoever builds it next takes it"
        );
        (3..3 + LATEST as u32).for_each(|m| drop(of(m)));
        assert!(dropped.upgrade().is_none());
        assert!(Arc::ptr_eq(&kept, &of(1)), "an op has it still");
        let known = proven.known.lock().expect("whole");
        assert_eq!((known.latest.len(), known.all.len()), (LATEST, LATEST + 1));
    }
}
