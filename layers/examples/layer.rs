//! TransformerEngine's `te_layer_with_overlap`: a layer of tensor-parallel ranks that trains, with its communication overlapped.
//!
//! Each iteration has a random batch, and the layer learns to give half of what it gets. Under `counterflow-run`, torchrun, mpirun or srun
//! each process is a rank, on a GPU of its own or emulated where there is none. By itself the program emulates ranks:
//! `cargo run --release -p counterflow-layers --example layer -- --ranks 4 --num-replicas 2`

#[path = "layer/average.rs"]
mod average;
#[path = "layer/model.rs"]
mod model;
#[path = "layer/nccl.rs"]
mod nccl;
#[path = "layer/own.rs"]
mod own;
#[path = "layer/saved.rs"]
mod saved;
#[path = "layer/wait.rs"]
mod wait;

use average::{Averages, Sums};
use clap::Parser;
use counterflow::rendezvous::Job;
use counterflow::{Communicator, Error, cuda::Gpu, prelude::bf16};
use counterflow_layers::overlap::Config;
use counterflow_layers::{
    DelayedScaling, Float8BlockScaling, Float8CurrentScaling, GradientSum, Initialize,
    QuantizationMode, Recipe, RngTracker, Userbuffers,
};
use model::{LayerType, Model};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// A recipe of FP8.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Fp8 {
    Delayed,
    Current,
    Blocks,
}

impl Fp8 {
    /// TransformerEngine's program has a history of 32 steps.
    fn recipe(self) -> Recipe {
        match self {
            Fp8::Delayed => {
                let (amax_history_len, usual) = (32, DelayedScaling::default());
                let recipe = DelayedScaling {
                    amax_history_len,
                    ..usual
                };
                recipe.into()
            }
            Fp8::Current => Float8CurrentScaling::default().into(),
            Fp8::Blocks => Float8BlockScaling::default().into(),
        }
    }
}

/// A tensor-parallel layer that trains with overlapped communication
#[derive(Parser, Clone, Debug)]
struct Options {
    #[arg(long, value_enum, default_value = "TransformerLayer")]
    layer_type: LayerType,
    /// Products in FP8: with delayed scaling, or by another recipe
    #[arg(long, value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "delayed")]
    fp8: Option<Fp8>,
    /// Communication before and after products, not beside them
    #[arg(long)]
    no_comm_overlap: bool,
    /// Tensor-parallel groups, whose gradients are averaged
    #[arg(long, default_value_t = 1)]
    num_replicas: u32,
    /// Average over replicas by NCCL, on a GPU for each rank: layer by layer, beside the backward pass
    #[arg(long)]
    nccl: bool,
    /// SMs that products leave to NCCL, which takes no more
    #[arg(long, default_value_t = 8)]
    nccl_sms: u32,
    /// Layers one behind the other
    #[arg(long, default_value_t = 1)]
    num_layers: usize,
    /// Tell what each step averages over replicas, and when
    #[arg(long)]
    verbose: bool,
    #[arg(long, default_value_t = 5)]
    iters: usize,
    #[arg(long, default_value_t = 2)]
    batch_size: usize,
    #[arg(long, default_value_t = 64)]
    seq_length: usize,
    #[arg(long, default_value_t = 64)]
    hidden: usize,
    #[arg(long, default_value_t = 4)]
    num_heads: usize,
    #[arg(long, default_value_t = 16)]
    head_dim: usize,
    /// How products overlap: a file as Megatron's --tp-comm-overlap-cfg takes
    #[arg(long)]
    config: Option<PathBuf>,
    #[arg(long, default_value_t = 1234)]
    seed: u64,
    /// Of the gradients' mean, which the weights go against
    #[arg(long, default_value_t = 4.0)]
    rate: f32,
    /// Emulated ranks, where no launcher starts processes
    #[arg(long, default_value_t = 2)]
    ranks: u32,
}

fn usage(what: String, legal: &str) -> Error {
    let legal = legal.to_owned();
    Error::Usage { what, legal }
}

/// A number from -1 to 1 that every rank has alike.
fn number(seed: u64, at: usize) -> f32 {
    let mixed = (seed << 32 ^ at as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn train(world: &Communicator, options: &Options) -> Result<(), Error> {
    let (ranks, replicas, rank) = (world.world(), options.num_replicas, world.rank());
    if options.num_layers == 0 {
        return Err(usage("no layer".into(), "give --num-layers 1 or more"));
    }
    if replicas == 0 || !ranks.is_multiple_of(replicas) {
        let what = format!("{ranks} ranks in {replicas} replicas");
        return Err(usage(
            what,
            "give a number of replicas that divides the ranks",
        ));
    }
    let tp = ranks / replicas;
    let (node, own) = (rank / tp, rank % tp);
    let group = Arc::new(world.split(node, own)?);
    let data = Arc::new(world.split(own, node)?);
    let say = |what: &str| println!("[rank{rank}:node{node}] {what}");
    let members = |of: &mut dyn Iterator<Item = u32>| format!("{:?}", of.collect::<Vec<_>>());
    if own == 0 {
        let members = members(&mut (node * tp..(node + 1) * tp));
        say(&format!("|-- Created tensor-parallel group: {members}"));
    }
    if replicas > 1 && node == 0 {
        let members = members(&mut (own..ranks).step_by(tp as usize));
        say(&format!("|-- Created data-parallel group: {members}"));
    }
    if options.nccl {
        nccl::may_be_loaded(&group, options.nccl_sms)?;
    }
    let (batch, hidden) = (options.batch_size, options.hidden);
    let rows = options.seq_length * batch;
    let config = options.config.as_deref().map(Config::load).transpose()?;
    let mode = match options.fp8 {
        Some(_) => QuantizationMode::Fp8,
        None => QuantizationMode::None,
    };
    let arguments = Initialize {
        ub_cfgs: vec![config.unwrap_or_default()],
        quantization_modes: vec![mode],
        ext_margin_sm: if options.nccl { options.nccl_sms } else { 0 },
        ..Initialize::new([rows, hidden], tp)
    };
    group.reserve(arguments.heap_bytes() + GradientSum::heap_bytes(hidden, tp) + (4 << 20))?;
    let buffers = Userbuffers::initialize(&group, &arguments)?;
    let of_norms = GradientSum::new(&group, hidden)?;
    let rng = Arc::new(RngTracker::new(options.seed, own));
    let mut model = Model::new(&buffers, options, &rng)?;
    let sums: Option<Box<dyn Sums + '_>> = match (options.nccl, replicas) {
        (true, _) => {
            let most = options.nccl_sms;
            Some(Box::new(nccl::Replicas::new(world, &data, &group, most)?))
        }
        (false, 1) => None,
        (false, _) => Some(Box::new(own::Own::new(&data, model.largest())?)),
    };
    if rank == 0 {
        model.tell();
    }
    let shard = group.shard(own, rows);
    let shape = [shard.len(), hidden];
    let mut last = group.zeros(shape)?;
    let count = (rows * hidden) as f32;
    for iteration in 1..=options.iters {
        let tells = own == 0;
        let step = |what: &str| {
            if tells {
                say(&format!("|-- {what}"))
            }
        };
        if tells {
            say(&format!("Iter {iteration}"));
        }
        step("Generate random input batch");
        let seed = options.seed + (iteration * replicas as usize + node as usize) as u64;
        let given = shard.start * hidden..shard.end * hidden;
        let given: Vec<bf16> = given.map(|at| bf16::from_f32(number(seed, at))).collect();
        let x = group.zeros(shape)?;
        x.write(&given)?;
        last = x.clone();
        let in_fp8 = options.fp8.map(|_| buffers.autocast(None)).transpose()?;
        step("Forward pass");
        let (y, saved) = model.forward([rows, batch], &x)?;
        step("Compute loss");
        let off = y.read()?.into_iter().zip(given);
        let off: Vec<f32> = off.map(|(y, x)| y.to_f32() - x.to_f32() / 2.0).collect();
        let mut loss = group.zeros::<f32>([1, 8])?;
        let part = off.iter().map(|off| off * off / count).sum::<f32>();
        loss.write(&[part / replicas as f32; 8])?;
        of_norms.over_ranks(&mut loss)?;
        if let Some(sums) = &sums {
            sums.begin(&loss)?;
            sums.end()?;
        }
        let loss = loss.read()?[0];
        step("Backward pass");
        let dy = group.zeros(shape)?;
        let by = 2.0 / (count * replicas as f32);
        dy.write(&Vec::from_iter(
            off.iter().map(|off| bf16::from_f32(off * by)),
        ))?;
        let enqueued = || group.op_counts().iter().map(|of| of.launches).sum();
        let averages = Averages::new(sums.as_deref(), &enqueued);
        model.backward(saved, &dy, &averages)?;
        if let Some(in_fp8) = in_fp8 {
            in_fp8.end()?;
        }
        let (count, behind) = averages.end(|| group.synchronize())?;
        if options.verbose {
            averages.told().iter().for_each(|line| step(line));
        }
        if count > 0 {
            let behind = 1e3 * behind.as_secs_f64();
            step(&format!(
                "{count} averages over replicas, the last one {behind:.3} ms behind the backward pass"
            ));
        }
        step("Optimizer step");
        model.update(options.rate, &of_norms)?;
        if rank == 0 {
            say(&format!("|-- loss {loss:.6}"));
        }
    }
    if tp > 1 && !options.no_comm_overlap {
        let of_step = ([rows, batch], &last);
        let times = saved::times(&buffers, options, &rng, &mut model, of_step)?;
        if rank == 0 {
            let is_emulated = group.gpu().is_emulated();
            for line in times.told(is_emulated) {
                say(&format!("|-- {line}"));
            }
        }
    }
    world.synchronize()?;
    world.barrier()
}

fn run(options: &Options) -> Result<(), Error> {
    let has_gpu = Gpu::count().is_ok_and(|count| count > 0);
    if Job::from_env()?.is_some() {
        let rank = match has_gpu {
            true => Communicator::from_env()?,
            false => Communicator::emulated_from_env()?,
        };
        // Others may wait for this rank in a sum of another library's, which sees no end of a group.
        return train(&rank, options).inspect_err(|error| rank.abort(error));
    }
    Communicator::each(&Communicator::emulated(options.ranks)?, |rank| {
        train(rank, options)
    })
    .map(drop)
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\nhelp: {}", error.help().unwrap_or("none"));
            ExitCode::FAILURE
        }
    }
}
